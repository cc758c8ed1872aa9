/* A plain C trainer, with forward and backward loops of its own, made to run on several ranks by Tessera's C
   API: an MLP that tells the two arms of a spiral apart. ../embed/spiral.cpp is the same in C++.

     spiral_c [RANKS [STAGE [STEPS [FOLDER]]]]      one rank, stage 0 and 300 steps where not given

   With a folder the run continues from what is saved there, by however many ranks, and saves at its end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/c_api.h"
#include "tessera/c_checkpoint.h"

#define WIDTH 96
#define BATCH 1024
#define TEST 2000
#define LAYERS 3

/* Returns from the rank with the status of a call that failed. */
#define TRY(call)                              \
  do {                                         \
    const tessera_status status_ = (call);     \
    if (status_ != TESSERA_OK) return status_; \
  } while (0)

static const char kUsage[] = "usage: spiral_c [RANKS [STAGE [STEPS [FOLDER]]]]\n";
static const int kIn[LAYERS] = {2, WIDTH, WIDTH}, kOut[LAYERS] = {WIDTH, WIDTH, 2};

typedef struct {
  int stage, steps;
  const char* folder; /* NULL: none */
} Settings;

typedef struct {
  int rows;
  float* values[LAYERS + 1];    /* [k]: rows x what goes into layer k */
  float* gradients[LAYERS + 1]; /* of those */
  int* arms;
  double loss;
} Spiral;

/* Counter-based, so that the samples are the same for every number of ranks: splitmix64's mixing function. */
static double uniform(uint64_t stream, uint64_t index) {
  uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u + stream * 0xd1342543de82ef95u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return ((double)(z >> 11) + 0.5) / 9007199254740992.0;
}

/* Box and Muller, Annals of Mathematical Statistics 1958. */
static double normal(uint64_t stream, uint64_t index) {
  return sqrt(-2.0 * log(uniform(stream, 2 * index))) *
         cos(6.283185307179586 * uniform(stream, 2 * index + 1));
}

static void load_samples(Spiral* spiral, uint64_t stream, uint64_t first) {
  for (int row = 0; row < spiral->rows; ++row) {
    const uint64_t index = first + (uint64_t)row;
    const int arm = (int)(index % 2);
    const double radius = 0.1 + 0.9 * uniform(10 + stream, index);
    const double angle = 9.0 * radius + arm * 3.14159265;
    spiral->values[0][2 * row] = (float)(radius * cos(angle) + 0.01 * normal(20 + stream, 2 * index));
    spiral->values[0][2 * row + 1] = (float)(radius * sin(angle) + 0.01 * normal(20 + stream, 2 * index + 1));
    spiral->arms[row] = arm;
  }
}

static void layer_forward(Spiral* spiral, int k, const float* w, const float* b) {
  const int in = kIn[k], out = kOut[k];
  for (int row = 0; row < spiral->rows; ++row) {
    const float* x = spiral->values[k] + row * in;
    float* y = spiral->values[k + 1] + row * out;
    memcpy(y, b, (size_t)out * sizeof *y);
    for (int i = 0; i < in; ++i)
      for (int o = 0; o < out; ++o) y[o] += x[i] * w[i * out + o];
    if (k + 1 < LAYERS)
      for (int o = 0; o < out; ++o) y[o] = y[o] > 0 ? y[o] : 0.01f * y[o];
  }
}

/* Turns the last values into the gradient of the summed loss; returns how many rows are right. */
static int softmax(Spiral* spiral) {
  int right = 0;
  spiral->loss = 0;
  for (int row = 0; row < spiral->rows; ++row) {
    const float* y = spiral->values[LAYERS] + 2 * row;
    const int arm = spiral->arms[row];
    const float p1 = 1.0f / (1.0f + expf(y[0] - y[1]));
    const float p[2] = {1.0f - p1, p1};
    spiral->loss -= log(fmax(p[arm], 1e-30));
    right += (p1 > 0.5f) == (arm == 1);
    for (int c = 0; c < 2; ++c) spiral->gradients[LAYERS][2 * row + c] = p[c] - (c == arm ? 1.0f : 0.0f);
  }
  return right;
}

static void layer_backward(Spiral* spiral, int k, const float* w, float* dw, float* db) {
  const int in = kIn[k], out = kOut[k];
  for (int row = 0; row < spiral->rows; ++row) {
    const float* x = spiral->values[k] + row * in;
    const float* y = spiral->values[k + 1] + row * out;
    float* dy = spiral->gradients[k + 1] + row * out;
    float* dx = spiral->gradients[k] + row * in;
    if (k + 1 < LAYERS)
      for (int o = 0; o < out; ++o) dy[o] *= y[o] > 0 ? 1.0f : 0.01f;
    for (int o = 0; o < out; ++o) db[o] += dy[o];
    for (int i = 0; i < in; ++i) {
      float sum = 0;
      for (int o = 0; o < out; ++o) {
        dw[i * out + o] += x[i] * dy[o];
        sum += w[i * out + o] * dy[o];
      }
      dx[i] = sum;
    }
  }
}

static tessera_status forward(tessera_engine* engine, Spiral* spiral) {
  for (int k = 0; k < LAYERS; ++k) {
    tessera_lease* lease;
    float *w, *b;
    TRY(tessera_use_unit(engine, k, TESSERA_FORWARD, &lease)); /* its parameters are gathered */
    TRY(tessera_lease_fp32(lease, 2 * k, &w));
    TRY(tessera_lease_fp32(lease, 2 * k + 1, &b));
    layer_forward(spiral, k, w, b);
    TRY(tessera_lease_end(lease)); /* and released */
  }
  return TESSERA_OK;
}

static tessera_status backward(tessera_engine* engine, Spiral* spiral) {
  for (int k = LAYERS - 1; k >= 0; --k) {
    tessera_lease* lease;
    float *w, *dw, *db;
    TRY(tessera_use_unit(engine, k, TESSERA_BACKWARD, &lease));
    TRY(tessera_lease_fp32(lease, 2 * k, &w));
    TRY(tessera_lease_gradient_fp32(lease, 2 * k, &dw)); /* zeros at first */
    TRY(tessera_lease_gradient_fp32(lease, 2 * k + 1, &db));
    layer_backward(spiral, k, w, dw, db);
    TRY(tessera_lease_end(lease)); /* reduced behind the next unit */
  }
  return TESSERA_OK;
}

static tessera_status fill(int32_t parameter, int64_t begin, float* values, int64_t numel, void* user) {
  const double deviation = parameter % 2 == 1 ? 0.0 : sqrt(2.0 / kIn[parameter / 2]);
  (void)user;
  for (int64_t k = 0; k < numel; ++k)
    values[k] = (float)(deviation * normal(30 + (uint64_t)parameter, (uint64_t)(begin + k)));
  return TESSERA_OK;
}

static tessera_status create_engine(tessera_world* world, int stage, tessera_engine** engine) {
  static const char* const unit_names[LAYERS] = {"layer0", "layer1", "layer2"};
  static const char* const weight_names[LAYERS] = {"layer0.weight", "layer1.weight", "layer2.weight"};
  static const char* const bias_names[LAYERS] = {"layer0.bias", "layer1.bias", "layer2.bias"};
  int64_t shapes[LAYERS][2];
  tessera_parameter parameters[LAYERS][2];
  tessera_unit units[LAYERS];
  tessera_options options;
  memset(parameters, 0, sizeof parameters); /* fp32, trainable, of group 0 */
  memset(units, 0, sizeof units);           /* hand nothing on */
  for (int k = 0; k < LAYERS; ++k) {
    shapes[k][0] = kIn[k];
    shapes[k][1] = kOut[k];
    parameters[k][0].name = weight_names[k];
    parameters[k][0].shape = shapes[k];
    parameters[k][0].dims = 2;
    parameters[k][1].name = bias_names[k];
    parameters[k][1].shape = &shapes[k][1];
    parameters[k][1].dims = 1;
    units[k].name = unit_names[k];
    units[k].parameters = parameters[k];
    units[k].parameter_count = 2;
  }
  TRY(tessera_options_init(&options, sizeof options));
  options.stage = stage;
  options.evaluation = 1;
  return tessera_engine_create(world, units, LAYERS, &options, engine);
}

/* The steps that the newest checkpoint in the folder has done; 0 where there is none. */
static tessera_status resume(tessera_world* world, tessera_engine* engine, const char* folder, int* steps) {
  tessera_run_state state;
  const char* newest;
  TRY(tessera_latest_checkpoint(folder, world, &newest));
  if (newest == NULL) return TESSERA_OK;
  TRY(tessera_load_checkpoint(newest, world, engine, &state));
  *steps = (int)state.step;
  return TESSERA_OK;
}

static tessera_status save(tessera_world* world, tessera_engine* engine, const char* folder, int steps) {
  const int64_t samples = (int64_t)steps * BATCH;
  const tessera_run_state state = {steps, samples, "spiral", NULL, samples};
  return tessera_save_checkpoint(folder, world, engine, &state, 1);
}

static tessera_status run(tessera_world* world, tessera_engine* engine, Spiral* spiral, int rank, int ranks,
                          const Settings* settings) {
  tessera_step_inputs inputs = {3e-3, 0, 0};
  tessera_step_result result;
  const int batch_rows = BATCH / ranks, test_rows = TEST / ranks;
  int done = 0;
  TRY(tessera_initialize(engine, fill, NULL));
  if (settings->folder) TRY(resume(world, engine, settings->folder, &done));
  if (rank == 0 && done > 0) printf("continues behind step %d\n", done);

  spiral->rows = batch_rows;
  for (int step = done; step < settings->steps; ++step) {
    TRY(tessera_begin(engine, TESSERA_TRAIN, 1));
    load_samples(spiral, 0, (uint64_t)step * BATCH + (uint64_t)(rank * batch_rows));
    TRY(forward(engine, spiral));
    softmax(spiral);
    TRY(backward(engine, spiral));
    inputs.weight = batch_rows;
    inputs.loss = spiral->loss;
    TRY(tessera_step(engine, &inputs, &result));
    if (rank == 0 && step % 50 == 49)
      printf("step %3d  loss %.4f  gradient norm %.3f\n", step + 1, result.loss, result.gradient_norm);
  }
  if (settings->folder && done < settings->steps) TRY(save(world, engine, settings->folder, settings->steps));

  spiral->rows = test_rows;
  TRY(tessera_begin(engine, TESSERA_EVALUATE, 1));
  load_samples(spiral, 1, (uint64_t)(rank * test_rows));
  TRY(forward(engine, spiral));
  inputs.weight = test_rows;
  inputs.loss = softmax(spiral); /* over all ranks, right / rows is the accuracy */
  TRY(tessera_step(engine, &inputs, &result));
  if (rank == 0) printf("ranks %d  stage %d  accuracy %.4f\n", ranks, settings->stage, result.loss);
  return TESSERA_OK;
}

static void free_spiral(Spiral* spiral) {
  for (int k = 0; k <= LAYERS; ++k) {
    free(spiral->values[k]);
    free(spiral->gradients[k]);
  }
  free(spiral->arms);
}

/* 1 where there was memory for `rows` samples. */
static int make_spiral(Spiral* spiral, int rows) {
  int whole = 1;
  memset(spiral, 0, sizeof *spiral);
  for (int k = 0; k <= LAYERS; ++k) {
    const size_t numel = (size_t)rows * (size_t)(k < LAYERS ? kIn[k] : 2);
    spiral->values[k] = calloc(numel, sizeof(float));
    spiral->gradients[k] = calloc(numel, sizeof(float));
    whole = whole && spiral->values[k] && spiral->gradients[k];
  }
  spiral->arms = calloc((size_t)rows, sizeof(int));
  return whole && spiral->arms;
}

static tessera_status run_rank(tessera_world* world, void* user) {
  const Settings* settings = user;
  tessera_engine* engine = NULL;
  tessera_status status;
  Spiral spiral;
  int32_t rank, ranks;
  TRY(tessera_world_rank(world, &rank));
  TRY(tessera_world_ranks(world, &ranks));
  TRY(create_engine(world, settings->stage, &engine));
  status = make_spiral(&spiral, TEST / ranks + BATCH) ? run(world, engine, &spiral, rank, ranks, settings)
                                                      : TESSERA_ENVIRONMENT;
  free_spiral(&spiral);
  tessera_engine_destroy(engine);
  return status;
}

/* The whole number from `least` to `most` that `text` is; ends the program where it is none. */
static int whole_number(const char* name, const char* text, int least, int most) {
  char* end;
  const long value = strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < least || value > most) {
    fprintf(stderr, "spiral_c: %s is '%s'; a whole number from %d to %d is needed\n%s", name, text, least,
            most, kUsage);
    exit(2);
  }
  return (int)value;
}

int main(int argc, char** argv) {
  const int help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
  Settings settings;
  int ranks;
  if (help || argc > 5) {
    fputs(kUsage, help ? stdout : stderr);
    return help ? 0 : 2;
  }
  ranks = argc > 1 ? whole_number("RANKS", argv[1], 1, BATCH) : 1;
  settings.stage = argc > 2 ? whole_number("STAGE", argv[2], 0, 3) : 0;
  settings.steps = argc > 3 ? whole_number("STEPS", argv[3], 1, 1000000) : 300;
  settings.folder = argc > 4 ? argv[4] : NULL;
  if (tessera_run_ranks(ranks, 60000, run_rank, &settings) != TESSERA_OK) {
    fprintf(stderr, "spiral_c: %s\n", tessera_last_error());
    return 1;
  }
  return 0;
}
