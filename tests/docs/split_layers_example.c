#include "tests/docs/split_layers_example.h"

#include <math.h>
#include <string.h>

#include "tests/engine/c_try.h"

/* c[i, j] = sum over l of a[i * a_row + l * a_column] * b[j * b_row + l * b_column]. */
static void product(int m, int n, int k, const float* a, int a_row, int a_column, const float* b, int b_row,
                    int b_column, int add, float* c) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) sum += a[i * a_row + l * a_column] * b[j * b_row + l * b_column];
      c[i * n + j] = add ? c[i * n + j] + sum : sum;
    }
}
void product_nt(int m, int n, int k, const float* a, const float* b, float* c) {
  product(m, n, k, a, k, 1, b, k, 1, 0, c);
}
void product_nn(int m, int n, int k, const float* a, const float* b, float* c) {
  product(m, n, k, a, k, 1, b, 1, n, 0, c);
}
void product_tn(int m, int n, int k, const float* a, const float* b, float* c) {
  product(m, n, k, a, 1, m, b, 1, n, 1, c);
}

float example_weight(int32_t parameter, int64_t index) {
  return 0.3f * sinf((float)(parameter * 37 + index * 11 + 1));
}

void example_samples(float* x) {
  for (int k = 0; k < EXAMPLE_ROWS * EXAMPLE_WIDTH; ++k) x[k] = sinf((float)(k * 3));
}

void example_loss(const float* y, float* dy, double* loss) {
  for (int k = 0; k < EXAMPLE_ROWS * EXAMPLE_WIDTH; ++k) {
    dy[k] = y[k] - 1.0f;
    *loss += 0.5 * dy[k] * dy[k];
  }
}

#define nt product_nt
#define nn product_nn
#define tn product_tn
#include "split_layers_c.inc"

static tessera_status fill(int32_t parameter, int64_t begin, float* values, int64_t numel, void* user) {
  (void)user;
  for (int64_t k = 0; k < numel; ++k) values[k] = example_weight(parameter, begin + k);
  return TESSERA_OK;
}

static tessera_status train(tessera_engine* engine, int32_t rank, split_example* example) {
  float x[ROWS * WIDTH], y[ROWS * WIDTH], dy[ROWS * WIDTH], dx[ROWS * WIDTH];
  float hidden[ROWS * HIDDEN], dhidden[ROWS * HIDDEN], weights[HIDDEN * WIDTH];
  const int own = HIDDEN / example->ranks;
  TRY(tessera_initialize(engine, fill, NULL));
  for (int step = 0; step < EXAMPLE_STEPS; ++step) {
    tessera_step_inputs inputs = {.learning_rate = 0.01, .weight = ROWS, .loss = 0.0};
    tessera_step_result result;
    tessera_lease* lease = NULL;
    example_samples(x);
    TRY(tessera_begin(engine, TESSERA_TRAIN, 1));
    TRY(tessera_use_unit(engine, 0, TESSERA_FORWARD, &lease));
    TRY(forward(lease, own, x, hidden, y));
    TRY(tessera_lease_end(lease));
    example_loss(y, dy, &inputs.loss);
    TRY(tessera_use_unit(engine, 0, TESSERA_BACKWARD, &lease));
    TRY(backward(lease, own, x, hidden, dy, dhidden, dx));
    TRY(tessera_lease_end(lease));
    TRY(tessera_step(engine, &inputs, &result));
    if (rank == 0) example->losses[step] = result.loss;
  }
  TRY(tessera_read(engine, 0, TESSERA_MASTER, 0, weights, HIDDEN * WIDTH));
  if (rank != 0) return TESSERA_OK;
  memcpy(example->up, weights, sizeof weights);
  memcpy(example->dx, dx, sizeof dx);
  return TESSERA_OK;
}

tessera_status train_example(tessera_world* world, void* user) {
  split_example* example = user;
  tessera_options options;
  tessera_engine* engine = NULL;
  int32_t rank = -1;
  TRY(tessera_world_rank(world, &rank));
  TRY(tessera_options_init(&options, sizeof options));
  options.tensor = example->ranks;
  options.splits_layers = 1;
  options.weight_decay = 0.01; /* as the engine's own default is in C++ */
  TRY(tessera_engine_create(world, &mlp, 1, &options, &engine));
  const tessera_status status = train(engine, rank, example);
  tessera_engine_destroy(engine);
  return status;
}
