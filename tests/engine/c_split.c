#include "tests/engine/c_split.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tessera/c_checkpoint.h"
#include "tests/engine/c_try.h"

enum { ROWS = SPLIT_ROWS, WIDTH = SPLIT_WIDTH, HIDDEN = SPLIT_HIDDEN, NUMEL = ROWS * WIDTH };

/* Of a layer, in order of declaration. */
enum { GATE_UP = 0, SCALE = 1, DOWN = 2, BIAS = 3 };

/* One rank's trainer. */
typedef struct {
  const split_run* run;
  tessera_engine* engine;
  int32_t ranks, rank; /* along the tensor axis */
  int32_t columns;     /* of the hidden layer on this rank */
  int32_t microbatch;  /* of the step, whichever rank's it is */
  float values[SPLIT_LAYERS + 1][NUMEL];
  float gate[SPLIT_LAYERS][ROWS * HIDDEN], up[SPLIT_LAYERS][ROWS * HIDDEN];
} trainer;

/* The views of a layer's parameters or gradients in a lease. */
typedef struct {
  tessera_view of[SPLIT_PARAMETERS];
} views;

static float* at(const views* v, int which) { return v->of[which].data; }

static tessera_status parameters_of(const tessera_lease* lease, int32_t layer, views* v) {
  for (int32_t k = 0; k < SPLIT_PARAMETERS; ++k)
    TRY(tessera_lease_parameter(lease, layer * SPLIT_PARAMETERS + k, &v->of[k]));
  return TESSERA_OK;
}

static tessera_status gradients_of(const tessera_lease* lease, int32_t layer, views* v) {
  for (int32_t k = 0; k < SPLIT_PARAMETERS; ++k) {
    tessera_view* gradient = &v->of[k];
    TRY(tessera_lease_gradient(lease, layer * SPLIT_PARAMETERS + k, gradient));
    if (gradient->beta == 0.0f) memset(gradient->data, 0, (size_t)gradient->numel * sizeof(float));
  }
  return TESSERA_OK;
}

/* The ranks' terms of all rows become their sum; in layer 0 by way of each rank's own rows. */
static tessera_status add_terms(const trainer* t, const tessera_lease* lease, int32_t layer, float* terms,
                                int32_t dropped) {
  const float last = terms[NUMEL - 1];
  const int64_t part = NUMEL / t->ranks;
  float own[NUMEL];
  if (layer > 0) {
    TRY(tessera_lease_all_reduce(lease, terms, NUMEL));
    if (t->run->dropped == dropped) terms[NUMEL - 1] = last;
    return TESSERA_OK;
  }
  const float own_last = terms[(t->rank + 1) * part - 1];
  TRY(tessera_lease_reduce_scatter(lease, terms, TESSERA_FP32, own, part));
  if (t->run->dropped == SPLIT_SCATTERED) own[part - 1] = own_last;
  TRY(tessera_lease_all_gather(lease, own, terms, part * (int64_t)sizeof(float)));
  if (t->run->dropped == SPLIT_GATHERED) terms[NUMEL - 1] = last;
  return TESSERA_OK;
}

/* This rank's columns of the bias; those behind the end are padding. */
static int32_t first_column(const trainer* t) { return t->rank * ((WIDTH + t->ranks - 1) / t->ranks); }

static tessera_status forward(trainer* t, const tessera_lease* lease, int32_t layer) {
  const float* x = t->values[layer];
  float* y = t->values[layer + 1];
  views p;
  TRY(parameters_of(lease, layer, &p));
  for (int r = 0; r < ROWS; ++r)
    for (int h = 0; h < t->columns; ++h) {
      float gate = 0, up = 0; /* the gate's rows of the matrix come first */
      for (int k = 0; k < WIDTH; ++k) {
        gate += at(&p, GATE_UP)[h * WIDTH + k] * x[r * WIDTH + k];
        up += at(&p, GATE_UP)[(t->columns + h) * WIDTH + k] * x[r * WIDTH + k];
      }
      t->gate[layer][r * t->columns + h] = tanhf(gate);
      t->up[layer][r * t->columns + h] = up;
    }
  for (int r = 0; r < ROWS; ++r)
    for (int k = 0; k < WIDTH; ++k) {
      float term = 0;
      for (int h = 0; h < t->columns; ++h)
        term += at(&p, DOWN)[k * t->columns + h] * at(&p, SCALE)[0] * t->gate[layer][r * t->columns + h] *
                t->up[layer][r * t->columns + h];
      const int own = k - first_column(t);
      if (own >= 0 && own < p.of[BIAS].numel) term += at(&p, BIAS)[own];
      y[r * WIDTH + k] = term;
    }
  TRY(add_terms(t, lease, layer, y, SPLIT_FORWARD));
  for (int k = 0; k < NUMEL; ++k) y[k] += x[k];
  return TESSERA_OK;
}

/* `dy` is the gradient of the layer's output, and becomes that of its input. */
static tessera_status backward(trainer* t, const tessera_lease* lease, int32_t layer, float* dy) {
  const float* x = t->values[layer];
  float terms[NUMEL] = {0};
  views p, g;
  TRY(parameters_of(lease, layer, &p));
  TRY(gradients_of(lease, layer, &g));
  const float scale = at(&p, SCALE)[0];
  for (int r = 0; r < ROWS; ++r) {
    for (int own = 0; own < p.of[BIAS].numel; ++own)
      if (first_column(t) + own < WIDTH) at(&g, BIAS)[own] += dy[r * WIDTH + first_column(t) + own];
    for (int h = 0; h < t->columns; ++h) {
      const float gate = t->gate[layer][r * t->columns + h], up = t->up[layer][r * t->columns + h];
      float dh = 0;
      for (int k = 0; k < WIDTH; ++k) {
        dh += dy[r * WIDTH + k] * at(&p, DOWN)[k * t->columns + h];
        at(&g, DOWN)[k * t->columns + h] += dy[r * WIDTH + k] * scale * gate * up;
      }
      at(&g, SCALE)[0] += dh * gate * up;
      const float d_gate = dh * scale * up * (1 - gate * gate), d_up = dh * scale * gate;
      for (int k = 0; k < WIDTH; ++k) {
        at(&g, GATE_UP)[h * WIDTH + k] += d_gate * x[r * WIDTH + k];
        at(&g, GATE_UP)[(t->columns + h) * WIDTH + k] += d_up * x[r * WIDTH + k];
        terms[r * WIDTH + k] +=
            d_gate * at(&p, GATE_UP)[h * WIDTH + k] + d_up * at(&p, GATE_UP)[(t->columns + h) * WIDTH + k];
      }
    }
  }
  if (layer == 0) return TESSERA_OK; /* nobody wants the gradient of the samples */
  TRY(add_terms(t, lease, layer, terms, SPLIT_BACKWARD));
  for (int k = 0; k < NUMEL; ++k) dy[k] += terms[k];
  return TESSERA_OK;
}

/* Half the sum of squares of what the last layer gives, whose gradient is that itself. */
static tessera_status microbatch(trainer* t, tessera_step_inputs* inputs) {
  float gradient[NUMEL];
  tessera_lease* lease = NULL;
  for (int k = 0; k < NUMEL; ++k) t->values[0][k] = sinf((float)(t->microbatch * 101 + k * 3));
  for (int32_t layer = 0; layer < SPLIT_LAYERS; ++layer) {
    TRY(tessera_use_unit(t->engine, layer, TESSERA_FORWARD, &lease));
    TRY(forward(t, lease, layer));
    TRY(tessera_lease_end(lease));
  }
  for (int k = 0; k < NUMEL; ++k) {
    gradient[k] = t->values[SPLIT_LAYERS][k];
    inputs->loss += 0.5 * gradient[k] * gradient[k];
  }
  inputs->weight += ROWS;
  for (int32_t layer = SPLIT_LAYERS - 1; layer >= 0; --layer) {
    TRY(tessera_use_unit(t->engine, layer, TESSERA_BACKWARD, &lease));
    TRY(backward(t, lease, layer, gradient));
    TRY(tessera_lease_end(lease));
  }
  return TESSERA_OK;
}

static tessera_status fill(int32_t parameter, int64_t begin, float* values, int64_t numel, void* user) {
  (void)user;
  for (int64_t k = 0; k < numel; ++k)
    values[k] = parameter % SPLIT_PARAMETERS == SCALE
                    ? 1.0f
                    : 0.3f * sinf((float)(parameter * 37 + (begin + k) * 11 + 1));
  return TESSERA_OK;
}

static tessera_status read_weights(tessera_engine* engine, float* weights) {
  static const int64_t numels[SPLIT_PARAMETERS] = {2 * HIDDEN * WIDTH, 1, WIDTH * HIDDEN, WIDTH};
  for (int32_t id = 0; id < SPLIT_LAYERS * SPLIT_PARAMETERS; ++id) {
    TRY(tessera_read(engine, id, TESSERA_MASTER, 0, weights, numels[id % SPLIT_PARAMETERS]));
    weights += numels[id % SPLIT_PARAMETERS];
  }
  return TESSERA_OK;
}

static tessera_status train(tessera_world* world, tessera_engine* engine, split_run* run) {
  const tessera_run_state state = {.step = SPLIT_STEPS};
  float first[SPLIT_NUMEL], weights[SPLIT_NUMEL];
  int32_t rank = -1;
  int32_t shard = 0, rounds = 0, own = 0;
  trainer t = {.run = run, .engine = engine, .ranks = run->options.tensor};
  t.columns = HIDDEN / t.ranks;
  TRY(tessera_place(engine, TESSERA_TENSOR, &t.rank));
  TRY(tessera_place(engine, TESSERA_SHARD, &shard));
  TRY(tessera_microbatches(engine, &rounds, &own));
  TRY(tessera_world_rank(world, &rank));
  if (run->load == NULL)
    TRY(tessera_initialize(engine, fill, NULL));
  else
    TRY(tessera_load_checkpoint(run->load, world, engine, NULL));
  TRY(read_weights(engine, first));
  for (int32_t step = 0; step < SPLIT_STEPS; ++step) {
    tessera_step_inputs inputs = {.learning_rate = 0.1, .weight = 0.0, .loss = 0.0};
    tessera_step_result result;
    TRY(tessera_begin(engine, TESSERA_TRAIN, rounds));
    for (int32_t round = 0; round < own; ++round) {
      t.microbatch = round * (SPLIT_MICROBATCHES / rounds) + shard;
      TRY(microbatch(&t, &inputs));
    }
    TRY(tessera_step(engine, &inputs, &result));
    if (rank != 0) continue;
    run->losses[step] = result.loss;
    run->norms[step] = result.gradient_norm;
  }
  TRY(read_weights(engine, weights));
  if (run->save != NULL) TRY(tessera_save_checkpoint(run->save, world, engine, &state, 1));
  if (rank != 0) return TESSERA_OK;
  memcpy(run->first_weights, first, sizeof first);
  memcpy(run->weights, weights, sizeof weights);
  return TESSERA_OK;
}

tessera_status split_rank_main(tessera_world* world, void* user) {
  split_run* run = user;
  const int64_t gate_up[2] = {2 * HIDDEN, WIDTH}, down[2] = {WIDTH, HIDDEN}, bias = WIDTH;
  const int64_t gate_then_up[2] = {HIDDEN, HIDDEN};
  const tessera_cut by_outputs = {.dim = 0, .segments = gate_then_up, .segment_count = 2};
  const tessera_cut by_inputs = {.dim = 1}, padded = {.dim = 0, .padded = 1};
  char names[SPLIT_LAYERS][SPLIT_PARAMETERS + 1][16];
  tessera_parameter parameters[SPLIT_LAYERS][SPLIT_PARAMETERS];
  tessera_unit units[SPLIT_LAYERS];
  tessera_engine* engine = NULL;
  for (int layer = 0; layer < SPLIT_LAYERS; ++layer) {
    for (int k = 0; k <= SPLIT_PARAMETERS; ++k)
      snprintf(names[layer][k], sizeof names[layer][k], "layer.%d.%d", layer, k);
    tessera_parameter* p = parameters[layer];
    p[GATE_UP] =
        (tessera_parameter){.name = names[layer][GATE_UP], .shape = gate_up, .dims = 2, .cut = &by_outputs};
    p[SCALE] =
        (tessera_parameter){.name = names[layer][SCALE], .gradient_over_tensor = TESSERA_GRADIENT_PARTIAL};
    p[DOWN] = (tessera_parameter){.name = names[layer][DOWN], .shape = down, .dims = 2, .cut = &by_inputs};
    p[BIAS] = (tessera_parameter){.name = names[layer][BIAS], .shape = &bias, .dims = 1, .cut = &padded};
    units[layer] = (tessera_unit){
        .name = names[layer][SPLIT_PARAMETERS], .parameters = p, .parameter_count = SPLIT_PARAMETERS};
  }
  TRY(tessera_engine_create(world, units, SPLIT_LAYERS, &run->options, &engine));
  const tessera_status status = train(world, engine, run);
  tessera_engine_destroy(engine);
  return status;
}
