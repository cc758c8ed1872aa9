#include "tests/engine/c_pipeline.h"

#include <stdio.h>

#include "tests/engine/c_try.h"

void chain_input(float* input, int32_t data_rank, int32_t step, int32_t microbatch) {
  for (int k = 0; k < CHAIN_NUMEL; ++k)
    input[k] = (float)((k * 7 + data_rank * 31 + step * 17 + microbatch * 13) % 101) / 101.0f - 0.5f;
}

void chain_forward(const float* weight, const float* input, float* output) {
  for (int k = 0; k < CHAIN_NUMEL; ++k) {
    const float product = weight[k] * input[(k + 1) % CHAIN_NUMEL];
    output[k] = input[k] + product;
  }
}

void chain_backward(const float* weight, const float* input, const float* output_gradient,
                    float* weight_gradient, float beta, float* input_gradient) {
  for (int k = 0; weight_gradient != NULL && k < CHAIN_NUMEL; ++k) {
    const float own = output_gradient[k] * input[(k + 1) % CHAIN_NUMEL];
    weight_gradient[k] = beta != 0.0f ? weight_gradient[k] + own : own;
  }
  if (input_gradient == NULL) return;
  for (int k = 0; k < CHAIN_NUMEL; ++k) {
    const int before = (k + CHAIN_NUMEL - 1) % CHAIN_NUMEL;
    input_gradient[k] = output_gradient[k] + output_gradient[before] * weight[before];
  }
}

double chain_loss(const float* output) {
  double loss = 0;
  for (int k = 0; k < CHAIN_NUMEL; ++k) loss += 0.5 * output[k] * output[k];
  return loss;
}

tessera_status chain_fill(int32_t parameter, int64_t begin, float* values, int64_t numel, void* user) {
  (void)user;
  for (int64_t k = 0; k < numel; ++k)
    values[k] = (float)((parameter * 29 + (begin + k) * 7) % 83 - 41) / 64.0f;
  return TESSERA_OK;
}

/* What a unit keeps where the engine has memory for it: saved, its input turned by one; recomputable, the
   product of forward. */
static void chain_save(const float* weight, const float* input, const tessera_handover* at) {
  float* saved = at->saved;
  for (int k = 0; input != NULL && k < CHAIN_NUMEL; ++k) saved[k] = input[(k + 1) % CHAIN_NUMEL];
  for (int k = 0; k < CHAIN_NUMEL; ++k) {
    ((float*)at->workspace)[k] = weight[k] * saved[k];
    ((float*)at->recomputable)[k] = ((float*)at->workspace)[k];
  }
}

static int chain_has_saved(const float* weight, const float* input, const tessera_handover* at) {
  const float *saved = at->saved, *recomputable = at->recomputable;
  for (int k = 0; k < CHAIN_NUMEL; ++k)
    if (saved[k] != input[(k + 1) % CHAIN_NUMEL] || recomputable[k] != weight[k] * saved[k]) return 0;
  return 1;
}

typedef struct {
  tessera_engine* engine;
  const chain_run* run;
  int32_t data_rank, step;
  float loss_scale;
} chain_step;

/* A weight gradient of a split backward has no weight; the last unit's backward is never split. */
static tessera_status chain_backward_use(const chain_step* of, const tessera_scheduled_use* use,
                                         const tessera_lease* lease, const float* input,
                                         tessera_step_inputs* inputs) {
  float end[CHAIN_NUMEL];
  int32_t writes = 0;
  tessera_view weight = {.data = NULL}, gradient = {.data = NULL};
  tessera_handover handed;
  const int has_weight = use->pass == TESSERA_BACKWARD;
  if (has_weight) TRY(tessera_lease_parameter(lease, use->unit, &weight));
  TRY(tessera_lease_writes_gradients(lease, &writes));
  if (writes) TRY(tessera_lease_gradient(lease, use->unit, &gradient));
  TRY(tessera_lease_handover(lease, &handed));
  const float* output_gradient = handed.output_gradient;
  if (use->unit == CHAIN_UNITS - 1) { /* the chain's end: the loss, and back */
    chain_forward(weight.data, input, end);
    inputs->loss += chain_loss(end);
    inputs->weight += 1;
    for (int k = 0; k < CHAIN_NUMEL; ++k) end[k] *= of->loss_scale;
    output_gradient = end;
  }
  if (of->run->saves && has_weight && !chain_has_saved(weight.data, input, &handed)) return TESSERA_USER + 1;
  chain_backward(weight.data, input, output_gradient, gradient.data, gradient.beta, handed.input_gradient);
  return TESSERA_OK;
}

/* One use: what the unit before handed on is its input, the first unit's is the microbatch. */
static tessera_status chain_use(const chain_step* of, const tessera_scheduled_use* use,
                                tessera_step_inputs* inputs) {
  float own_input[CHAIN_NUMEL];
  tessera_lease* lease = NULL;
  tessera_view weight;
  tessera_handover handed;
  TRY(tessera_use_unit(of->engine, use->unit, use->pass, &lease));
  TRY(tessera_lease_handover(lease, &handed));
  const float* input = handed.input;
  if (use->unit == 0) {
    chain_input(own_input, of->data_rank, of->step, use->microbatch);
    input = own_input;
  }
  if (use->pass == TESSERA_BACKWARD || use->pass == TESSERA_WEIGHT_GRADIENT) {
    TRY(chain_backward_use(of, use, lease, input, inputs));
  } else {
    TRY(tessera_lease_parameter(lease, use->unit, &weight));
    const int keeps_saved = use->pass == TESSERA_RECOMPUTE && /* which a selective one reads */
                            of->run->options.recompute == TESSERA_RECOMPUTE_SELECTIVE;
    if (of->run->saves) chain_save(weight.data, keeps_saved ? NULL : input, &handed);
    if (handed.output != NULL) chain_forward(weight.data, input, handed.output);
  }
  return tessera_lease_end(lease);
}

static void chain_record(chain_run* run, int32_t step, const tessera_step_result* result) {
  run->losses[step] = result->loss;
  run->norms[step] = result->gradient_norm;
  run->loss_scales[step] = result->loss_scale;
  run->parameter_norm_counts[step] = result->parameter_norm_count;
  for (int32_t k = 0; k < result->parameter_norm_count; ++k)
    run->parameter_norms[step][k] = result->parameter_norms[k];
}

static tessera_status chain_steps(tessera_engine* engine, int32_t rank, chain_run* run) {
  int32_t replica = 0, shard = 0;
  int64_t applied = -1;
  tessera_timing timing;
  TRY(tessera_initialize(engine, chain_fill, NULL));
  TRY(tessera_place(engine, TESSERA_REPLICATE, &replica));
  TRY(tessera_place(engine, TESSERA_SHARD, &shard));
  TRY(tessera_set_tracing(engine, run->trace));
  chain_step of = {.engine = engine, .run = run, .data_rank = replica * 2 + shard};
  for (; of.step < CHAIN_STEPS; ++of.step) {
    const tessera_scheduled_use* uses = NULL;
    int32_t count = 0;
    tessera_step_inputs inputs = {.learning_rate = 0.01, .weight = 0.0, .loss = 0.0};
    tessera_step_result result;
    TRY(tessera_begin(engine, TESSERA_TRAIN, CHAIN_MICROBATCHES));
    TRY(tessera_loss_scale(engine, &of.loss_scale));
    TRY(tessera_scheduled_uses(engine, &uses, &count));
    for (int32_t k = 0; k < count; ++k) TRY(chain_use(&of, &uses[k], &inputs));
    TRY(tessera_step(engine, &inputs, &result));
    if (rank == 0) chain_record(run, of.step, &result);
  }
  TRY(tessera_steps_applied(engine, &applied));
  TRY(tessera_step_timing(engine, &timing));
  if (rank == 0) {
    run->steps_applied = applied;
    run->timing = timing;
    TRY(tessera_plan_bytes(engine, TESSERA_DEVICE, &run->arenas[0], NULL));
    TRY(tessera_plan_bytes(engine, TESSERA_HOST, &run->arenas[1], NULL));
  }
  for (int32_t unit = 0; unit < CHAIN_UNITS; ++unit) {
    float values[CHAIN_NUMEL];
    TRY(tessera_read(engine, unit, TESSERA_MASTER, 0, values, CHAIN_NUMEL));
    for (int k = 0; rank == 0 && k < CHAIN_NUMEL; ++k) run->weights[unit * CHAIN_NUMEL + k] = values[k];
  }
  return TESSERA_OK;
}

tessera_status chain_rank_main(tessera_world* world, void* user) {
  chain_run* run = user;
  const int64_t numel = CHAIN_NUMEL, bytes = CHAIN_NUMEL * 4;
  char names[CHAIN_UNITS][2][16];
  tessera_parameter weights[CHAIN_UNITS];
  tessera_unit units[CHAIN_UNITS];
  int32_t rank = -1;
  tessera_engine* engine = NULL;
  for (int unit = 0; unit < CHAIN_UNITS; ++unit) {
    snprintf(names[unit][0], sizeof names[unit][0], "unit.%d", unit);
    snprintf(names[unit][1], sizeof names[unit][1], "unit.%d.w", unit);
    weights[unit] = (tessera_parameter){.name = names[unit][1], .shape = &numel, .dims = 1};
    units[unit] = (tessera_unit){.name = names[unit][0],
                                 .parameters = &weights[unit],
                                 .parameter_count = 1,
                                 .output_bytes = unit < CHAIN_UNITS - 1 ? bytes : 0,
                                 .saved_bytes = run->saves ? bytes : 0,
                                 .recomputable_bytes = run->saves ? bytes : 0,
                                 .workspace_bytes = run->saves ? bytes : 0,
                                 .splits_backward = run->splits_backward};
  }
  TRY(tessera_world_rank(world, &rank));
  TRY(tessera_engine_create(world, units, CHAIN_UNITS, &run->options, &engine));
  const tessera_status status = chain_steps(engine, rank, run);
  tessera_engine_destroy(engine);
  return status;
}
