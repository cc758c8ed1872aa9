/* What the examples that split layers are trained with, in C and in C++: products, samples and a loss. */
#ifndef TESSERA_TESTS_SPLIT_LAYERS_EXAMPLE_H
#define TESSERA_TESTS_SPLIT_LAYERS_EXAMPLE_H

#include "tessera/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXAMPLE_ROWS = 8, EXAMPLE_WIDTH = 12, EXAMPLE_HIDDEN = 32, EXAMPLE_STEPS = 5 };

/* c[m, n] = a * b over k, row-major, with b, none or a transposed; the last adds to c. */
void product_nt(int m, int n, int k, const float* a, const float* b, float* c);
void product_nn(int m, int n, int k, const float* a, const float* b, float* c);
void product_tn(int m, int n, int k, const float* a, const float* b, float* c);

float example_weight(int32_t parameter, int64_t index);
void example_samples(float* x);
/* Half the sum of squares of y - 1, and its gradient. */
void example_loss(const float* y, float* dy, double* loss);

typedef struct split_example {
  int32_t ranks; /* along the tensor axis */
  /* By rank 0. */
  double losses[EXAMPLE_STEPS];
  float up[EXAMPLE_HIDDEN * EXAMPLE_WIDTH];
  float dx[EXAMPLE_ROWS * EXAMPLE_WIDTH];
} split_example;

/* A tessera_rank_main; user is a split_example. Trains with the functions of docs/embed-in-c.md. */
tessera_status train_example(tessera_world* world, void* user);

#ifdef __cplusplus
}
#endif

#endif
