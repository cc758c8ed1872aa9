/* A chain over a mesh in C, with compute of its own, for c_pipeline_test.cpp to hold against the C++ engine.
 */
#ifndef TESSERA_TESTS_C_PIPELINE_H
#define TESSERA_TESTS_C_PIPELINE_H

#include "tessera/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CHAIN_UNITS = 5, CHAIN_NUMEL = 96, CHAIN_MICROBATCHES = 4, CHAIN_STEPS = 3 };

/* What goes into the chain. */
void chain_input(float* input, int32_t data_rank, int32_t step, int32_t microbatch);
/* output[k] = input[k] + weight[k] * input[k + 1], around. */
void chain_forward(const float* weight, const float* input, float* output);
/* The gradients of that; either may be NULL. beta as in tessera_view. */
void chain_backward(const float* weight, const float* input, const float* output_gradient,
                    float* weight_gradient, float beta, float* input_gradient);
/* The loss of the chain's end, half the sum of squares; its gradient is the output itself. */
double chain_loss(const float* output);
tessera_status chain_fill(int32_t parameter, int64_t begin, float* values, int64_t numel, void* user);

typedef struct chain_run {
  tessera_options options;
  int32_t saves; /* 1: units keep for backward what the engine has memory for */
  int32_t trace;
  int32_t splits_backward;
  /* By rank 0. */
  double losses[CHAIN_STEPS];
  double norms[CHAIN_STEPS];
  double loss_scales[CHAIN_STEPS];
  double parameter_norms[CHAIN_STEPS][CHAIN_UNITS];
  int32_t parameter_norm_counts[CHAIN_STEPS];
  int64_t steps_applied;
  int64_t arenas[2]; /* of device and host, in bytes */
  tessera_timing timing;
  float weights[CHAIN_UNITS * CHAIN_NUMEL];
} chain_run;

/* A tessera_rank_main; user is a chain_run. */
tessera_status chain_rank_main(tessera_world* world, void* user);

#ifdef __cplusplus
}
#endif

#endif
