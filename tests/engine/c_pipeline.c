#include "tests/engine/c_pipeline.h"

#include <stdio.h>

#define TRY(call)                              \
  do {                                         \
    const tessera_status status_ = (call);     \
    if (status_ != TESSERA_OK) return status_; \
  } while (0)

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
  for (int k = 0; k < CHAIN_NUMEL; ++k) {
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

/* One use: what the unit before handed on is its input, the first unit's is the microbatch. */
static tessera_status chain_use(tessera_engine* engine, const tessera_scheduled_use* use, int32_t data_rank,
                                int32_t step, tessera_step_inputs* inputs) {
  float own_input[CHAIN_NUMEL], end[CHAIN_NUMEL];
  tessera_lease* lease = NULL;
  tessera_view weight, gradient;
  tessera_handover handed;
  TRY(tessera_use_unit(engine, use->unit, use->pass, &lease));
  TRY(tessera_lease_parameter(lease, use->unit, &weight));
  TRY(tessera_lease_handover(lease, &handed));
  const float* input = handed.input;
  if (use->unit == 0) {
    chain_input(own_input, data_rank, step, use->microbatch);
    input = own_input;
  }
  if (use->pass == TESSERA_FORWARD) {
    if (handed.output != NULL) chain_forward(weight.data, input, handed.output);
  } else {
    const float* output_gradient = handed.output_gradient;
    if (use->unit == CHAIN_UNITS - 1) { /* the chain's end: the loss, and back */
      chain_forward(weight.data, input, end);
      inputs->loss += chain_loss(end);
      inputs->weight += 1;
      output_gradient = end;
    }
    TRY(tessera_lease_gradient(lease, use->unit, &gradient));
    chain_backward(weight.data, input, output_gradient, gradient.data, gradient.beta, handed.input_gradient);
  }
  return tessera_lease_end(lease);
}

static tessera_status chain_steps(tessera_engine* engine, int32_t rank, chain_run* run) {
  int32_t replica = 0, shard = 0;
  TRY(tessera_initialize(engine, chain_fill, NULL));
  TRY(tessera_place(engine, TESSERA_REPLICATE, &replica));
  TRY(tessera_place(engine, TESSERA_SHARD, &shard));
  for (int32_t step = 0; step < CHAIN_STEPS; ++step) {
    const tessera_scheduled_use* uses = NULL;
    int32_t count = 0;
    tessera_step_inputs inputs = {.learning_rate = 0.01, .weight = 0.0, .loss = 0.0};
    tessera_step_result result;
    TRY(tessera_begin(engine, TESSERA_TRAIN, CHAIN_MICROBATCHES));
    TRY(tessera_scheduled_uses(engine, &uses, &count));
    for (int32_t k = 0; k < count; ++k) TRY(chain_use(engine, &uses[k], replica * 2 + shard, step, &inputs));
    TRY(tessera_step(engine, &inputs, &result));
    if (rank == 0) {
      run->losses[step] = result.loss;
      run->norms[step] = result.gradient_norm;
    }
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
  const int64_t numel = CHAIN_NUMEL;
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
                                 .output_bytes = unit < CHAIN_UNITS - 1 ? CHAIN_NUMEL * 4 : 0};
  }
  TRY(tessera_world_rank(world, &rank));
  TRY(tessera_engine_create(world, units, CHAIN_UNITS, &run->options, &engine));
  const tessera_status status = chain_steps(engine, rank, run);
  tessera_engine_destroy(engine);
  return status;
}
