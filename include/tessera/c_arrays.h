/* Arrays in C (C99): for trainers that keep every kind of parameter in one array, [layers, ...], and index it
   by layer. tessera/arrays.h over the handles of c_api.h, whose rules on errors, outputs and strings hold
   here, too. docs/embed-in-c.md has the whole recipe.

   Code that computes base + layer * stride works unchanged: tessera_enter sets the bases of the arrays that a
   unit reads, such that its part of each lies where the trainer's own memory would have it. */
#ifndef TESSERA_C_ARRAYS_H
#define TESSERA_C_ARRAYS_H

#include <stdint.h>

#include "tessera/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One array of the trainer's. Zeros are defaults: a trainable fp32 array of one part, of unit 0. */
typedef struct tessera_array {
  const char* name;   /* unique; NULL: array<i>, by its place in the list */
  int64_t numel;      /* elements of all parts */
  int32_t units;      /* number of equal parts, one behind the other; 0: one, the array is not stacked */
  int32_t first_unit; /* part k is a parameter of unit first_unit + k */
  int32_t also_in;    /* a later unit that reads the whole array, too (tied); 0: none */
  int32_t dtype;      /* TESSERA_FP32, TESSERA_BF16 or TESSERA_FP16 */
  int32_t frozen;     /* 1: no gradient and no optimizer state */
  int32_t group;      /* of tessera_options.groups */
} tessera_array;

/* Makes an engine whose parameters are the arrays' parts. Units are numbered from 0 without gaps, in forward
   order; each has a part of one array at least. Names, for checkpoints and messages: an array that is not
   stacked is a parameter of its own name, part k of a stacked one is "<name>.<k>".
   options.overwrite_gradients must be 0. Collective; all verbs of c_api.h work on the engine. They end the
   use that tessera_enter began. */
tessera_status tessera_engine_create_arrays(tessera_world* world, const tessera_array* arrays, int32_t count,
                                            const tessera_options* options, tessera_engine** engine);

/* Names the trainer's two tables, each with an entry for each array: its base pointer. The tables must live
   as long as the engine; their entries are NULL until tessera_enter. NULL for `gradients`: for evaluation
   only. TESSERA_USAGE, naming the array and its type, if one is not fp32. TESSERA_ENVIRONMENT if a limit on
   address space (ulimit -v) leaves no room for the bases of stacked arrays. */
tessera_status tessera_bind(tessera_engine* engine, float** parameters, float** gradients);
/* The same for arrays of any type: each entry points to elements of its array's type. */
tessera_status tessera_bind_any(tessera_engine* engine, void** parameters, void** gradients);

/* Ends the use before, if any, and begins the next one, which must be this: tessera_use_unit for the tables.
   Then the arrays that the unit reads have their bases in `parameters` and, in TESSERA_BACKWARD, the
   trainable ones in `gradients`; all other entries are NULL. Gradients hold zeros at first: add to them. Of a
   stacked array only the unit's own part may be touched; the addresses before and behind it belong to others,
   or to nobody. */
tessera_status tessera_enter(tessera_engine* engine, int32_t unit, int32_t pass);
/* Ends the use that tessera_enter began, if any: all entries are NULL. tessera_step and the other verbs do
   this themselves. */
tessera_status tessera_leave(tessera_engine* engine);

/* Sets the parameters from memory that has all arrays one behind the other, in fp32, as the trainer would
   have them itself, or copies them there. Collective, between steps. What is written must be the same on all
   ranks: TESSERA_COMMUNICATION, naming the parameter, the element and both values, if it is not. */
tessera_status tessera_write_arrays(tessera_engine* engine, const float* all);
tessera_status tessera_read_arrays(tessera_engine* engine, float* all);

/* Ends a step whose losses are means. Gradients are sums, over this rank's microbatches, of the gradient of
   each one's mean loss, and `loss` is the sum of these means: with one microbatch simply its mean loss and
   the gradient of that. The model learns from the mean over all microbatches of all ranks, which therefore
   have the same number of samples each. `learning_rate` as in tessera_step_inputs, `result` as for
   tessera_step. Also ends an evaluation. */
tessera_status tessera_step_mean(tessera_engine* engine, double learning_rate, double loss,
                                 tessera_step_result* result);

#ifdef __cplusplus
}
#endif

#endif
