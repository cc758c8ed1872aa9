/* A trainer in C that splits its own layers over the tensor axis, for c_split_test.cpp to run on many meshes.
 */
#ifndef TESSERA_TESTS_C_SPLIT_H
#define TESSERA_TESTS_C_SPLIT_H

#include "tessera/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Layers of gate, up, a scale, down and a bias. Rows are the samples of one of the MICROBATCHES of a step.
   WIDTH is no multiple of 4, so the bias is padded on 4 ranks. */
enum {
  SPLIT_LAYERS = 2,
  SPLIT_PARAMETERS = 4, /* of a layer */
  SPLIT_ROWS = 8,
  SPLIT_WIDTH = 10,
  SPLIT_HIDDEN = 8,
  SPLIT_MICROBATCHES = 2,
  SPLIT_STEPS = 3,
  SPLIT_NUMEL = SPLIT_LAYERS * (3 * SPLIT_HIDDEN * SPLIT_WIDTH + 1 + SPLIT_WIDTH)
};

/* Which collective leaves the last element as it was on this rank. */
enum { SPLIT_NOTHING = 0, SPLIT_FORWARD = 1, SPLIT_BACKWARD = 2, SPLIT_SCATTERED = 3, SPLIT_GATHERED = 4 };

typedef struct split_run {
  tessera_options options;
  int32_t dropped;
  const char* load; /* the folder of the checkpoint that it begins with; NULL: none */
  const char* save; /* the folder of the checkpoint at its end; NULL: none */
  /* By rank 0. */
  float first_weights[SPLIT_NUMEL];
  double losses[SPLIT_STEPS];
  double norms[SPLIT_STEPS];
  float weights[SPLIT_NUMEL];
} split_run;

/* A tessera_rank_main; user is a split_run. */
tessera_status split_rank_main(tessera_world* world, void* user);

#ifdef __cplusplus
}
#endif

#endif
