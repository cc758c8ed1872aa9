/* gpt_plain.c on several ranks, each of which holds a part of the parameters, gradients and optimizer's
   states: compare the two. Started by itself, RANKS are threads; under mpirun, srun or torchrun, each process
   is a rank.

     gpt_sharded FILE [STEPS [STAGE [RANKS]]] */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/c_arrays.h"

enum { VOCABULARY = 256, T = 32, C = 48, HEADS = 4, LAYERS = 3, BATCH = 8 };

/* Arrays of parameters. The first of a layer is NORM1_W, the last DOWN_B. */
enum {
  EMBED,
  POSITION,
  NORM1_W,
  NORM1_B,
  QKV_W,
  QKV_B,
  MIX_W,
  MIX_B,
  NORM2_W,
  NORM2_B,
  UP_W,
  UP_B,
  DOWN_W,
  DOWN_B,
  NORM_W,
  NORM_B,
  ARRAYS
};

static const int64_t kNumel[ARRAYS] = {
    VOCABULARY * C,    T* C,      LAYERS* C, LAYERS* C, LAYERS * 3 * C* C, LAYERS * 3 * C,
    LAYERS* C* C,      LAYERS* C, LAYERS* C, LAYERS* C, LAYERS * 4 * C* C, LAYERS * 4 * C,
    LAYERS * 4 * C* C, LAYERS* C, C,         C};

/* What a layer's forward leaves for its backward. */
typedef struct {
  float *x, *norm1, *mean1, *scale1, *qkv, *probabilities, *mixed, *x2, *norm2, *mean2, *scale2, *up, *gelu;
} Layer;

typedef struct {
  tessera_engine* engine;
  float *p[ARRAYS], *g[ARRAYS]; /* bases of parameters and of gradients */
  int rows;                     /* sequences of a batch */
  int *inputs, *targets;        /* [rows, T] */
  Layer layers[LAYERS];
  float *x, *norm, *mean, *scale, *probabilities; /* behind the last layer */
  float *dx, *dx2, *dnorm, *dqkv, *dup, *dprobabilities;
} Model;

static const char kUsage[] = "usage: gpt_sharded FILE [STEPS [STAGE [RANKS]]]\n";

/* The whole number from `least` to `most` that argument `at` is, or `otherwise` if it is not given. */
static int number(int argc, char** argv, int at, const char* name, int least, int most, int otherwise) {
  char* end;
  if (at >= argc) return otherwise;
  const long value = strtol(argv[at], &end, 10);
  if (end == argv[at] || *end != '\0' || value < least || value > most) {
    fprintf(stderr, "%s is '%s'; a whole number from %d to %d is needed\n%s", name, argv[at], least, most,
            kUsage);
    exit(2);
  }
  return (int)value;
}

/* Ends the program if it was asked for help, or with arguments that it does not take. */
static void check_usage(int argc, char** argv, int most) {
  const int help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
  if (!help && argc >= 2 && argc <= most + 1) return;
  fputs(kUsage, help ? stdout : stderr);
  exit(help ? 0 : 2);
}

static void* take(size_t numel, size_t bytes) {
  void* memory = calloc(numel, bytes);
  if (memory == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  return memory;
}
static float* floats(int64_t numel) { return take((size_t)numel, sizeof(float)); }

/* y = x W^T + b, of n rows. */
static void linear(int n, int in, int out, const float* x, const float* w, const float* b, float* y) {
  for (int row = 0; row < n; ++row)
    for (int o = 0; o < out; ++o) {
      float sum = b ? b[o] : 0;
      for (int i = 0; i < in; ++i) sum += x[row * in + i] * w[o * in + i];
      y[row * out + o] = sum;
    }
}

static void linear_backward(int n, int in, int out, const float* x, const float* w, const float* dy,
                            float* dx, float* dw, float* db) {
  for (int row = 0; row < n; ++row) {
    for (int i = 0; i < in; ++i) dx[row * in + i] = 0;
    for (int o = 0; o < out; ++o) {
      const float d = dy[row * out + o];
      if (db) db[o] += d;
      for (int i = 0; i < in; ++i) {
        dx[row * in + i] += d * w[o * in + i];
        dw[o * in + i] += d * x[row * in + i];
      }
    }
  }
}

static void layer_norm(int n, const float* x, const float* w, const float* b, float* y, float* mean,
                       float* scale) {
  for (int row = 0; row < n; ++row, x += C, y += C) {
    float sum = 0, squares = 0;
    for (int i = 0; i < C; ++i) sum += x[i];
    mean[row] = sum / C;
    for (int i = 0; i < C; ++i) squares += (x[i] - mean[row]) * (x[i] - mean[row]);
    scale[row] = 1.0f / sqrtf(squares / C + 1e-5f);
    for (int i = 0; i < C; ++i) y[i] = (x[i] - mean[row]) * scale[row] * w[i] + b[i];
  }
}

/* Adds to dx. */
static void layer_norm_backward(int n, const float* x, const float* w, const float* mean, const float* scale,
                                const float* dy, float* dx, float* dw, float* db) {
  for (int row = 0; row < n; ++row, x += C, dx += C, dy += C) {
    float sum = 0, product = 0;
    for (int i = 0; i < C; ++i) {
      const float normal = (x[i] - mean[row]) * scale[row];
      sum += dy[i] * w[i];
      product += dy[i] * w[i] * normal;
      dw[i] += dy[i] * normal;
      db[i] += dy[i];
    }
    for (int i = 0; i < C; ++i) {
      const float normal = (x[i] - mean[row]) * scale[row];
      dx[i] += (dy[i] * w[i] - sum / C - normal * product / C) * scale[row];
    }
  }
}

static const float kHeadScale = 0.28867513f; /* 1 / sqrt(C / HEADS) */

static void attention(int rows, const float* qkv, float* probabilities, float* y) {
  const int width = C / HEADS;
  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < HEADS; ++head)
      for (int t = 0; t < T; ++t) {
        const float* q = qkv + (row * T + t) * 3 * C + head * width;
        float* p = probabilities + ((row * HEADS + head) * T + t) * T;
        float* out = y + (row * T + t) * C + head * width;
        float largest = -1e30f, sum = 0;
        for (int s = 0; s <= t; ++s) {
          const float* k = qkv + (row * T + s) * 3 * C + C + head * width;
          p[s] = 0;
          for (int i = 0; i < width; ++i) p[s] += q[i] * k[i];
          p[s] *= kHeadScale;
          if (p[s] > largest) largest = p[s];
        }
        for (int s = 0; s <= t; ++s) sum += p[s] = expf(p[s] - largest);
        for (int i = 0; i < width; ++i) out[i] = 0;
        for (int s = 0; s <= t; ++s) {
          const float* v = qkv + (row * T + s) * 3 * C + 2 * C + head * width;
          p[s] /= sum;
          for (int i = 0; i < width; ++i) out[i] += p[s] * v[i];
        }
      }
}

static void attention_backward(int rows, const float* qkv, const float* probabilities, const float* dy,
                               float* dqkv) {
  const int width = C / HEADS;
  memset(dqkv, 0, (size_t)(rows * T * 3 * C) * sizeof *dqkv);
  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < HEADS; ++head)
      for (int t = 0; t < T; ++t) {
        const int64_t at = (row * T + t) * 3 * C + head * width;
        const float* p = probabilities + ((row * HEADS + head) * T + t) * T;
        const float* d = dy + (row * T + t) * C + head * width;
        float dp[T], sum = 0;
        for (int s = 0; s <= t; ++s) {
          const int64_t value = (row * T + s) * 3 * C + 2 * C + head * width;
          dp[s] = 0;
          for (int i = 0; i < width; ++i) {
            dp[s] += d[i] * qkv[value + i];
            dqkv[value + i] += p[s] * d[i];
          }
          sum += dp[s] * p[s];
        }
        for (int s = 0; s <= t; ++s) {
          const int64_t key = (row * T + s) * 3 * C + C + head * width;
          const float score = p[s] * (dp[s] - sum) * kHeadScale;
          for (int i = 0; i < width; ++i) {
            dqkv[at + i] += score * qkv[key + i];
            dqkv[key + i] += score * qkv[at + i];
          }
        }
      }
}

/* The exact one, by the normal distribution's integral. */
static float gelu(float x) { return 0.5f * x * (1 + erff(x * 0.70710678f)); }
static float gelu_slope(float x) {
  return 0.5f * (1 + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
}

static void embed(Model* m) {
  float* x = m->layers[0].x;
  for (int k = 0; k < m->rows * T; ++k)
    for (int i = 0; i < C; ++i)
      x[k * C + i] = m->p[EMBED][m->inputs[k] * C + i] + m->p[POSITION][k % T * C + i];
}

static void layer_forward(Model* m, int l) {
  const int n = m->rows * T;
  Layer* a = &m->layers[l];
  float* x = l + 1 < LAYERS ? m->layers[l + 1].x : m->x;
  layer_norm(n, a->x, m->p[NORM1_W] + l * C, m->p[NORM1_B] + l * C, a->norm1, a->mean1, a->scale1);
  linear(n, C, 3 * C, a->norm1, m->p[QKV_W] + l * 3 * C * C, m->p[QKV_B] + l * 3 * C, a->qkv);
  attention(m->rows, a->qkv, a->probabilities, a->mixed);
  linear(n, C, C, a->mixed, m->p[MIX_W] + l * C * C, m->p[MIX_B] + l * C, a->x2);
  for (int k = 0; k < n * C; ++k) a->x2[k] += a->x[k];
  layer_norm(n, a->x2, m->p[NORM2_W] + l * C, m->p[NORM2_B] + l * C, a->norm2, a->mean2, a->scale2);
  linear(n, C, 4 * C, a->norm2, m->p[UP_W] + l * 4 * C * C, m->p[UP_B] + l * 4 * C, a->up);
  for (int k = 0; k < n * 4 * C; ++k) a->gelu[k] = gelu(a->up[k]);
  linear(n, 4 * C, C, a->gelu, m->p[DOWN_W] + l * 4 * C * C, m->p[DOWN_B] + l * C, x);
  for (int k = 0; k < n * C; ++k) x[k] += a->x2[k];
}

/* Returns the mean loss, and leaves its gradient in place of the probabilities. */
static double head_forward(Model* m) {
  const int n = m->rows * T;
  double loss = 0;
  layer_norm(n, m->x, m->p[NORM_W], m->p[NORM_B], m->norm, m->mean, m->scale);
  linear(n, C, VOCABULARY, m->norm, m->p[EMBED], NULL, m->probabilities);
  for (int k = 0; k < n; ++k) {
    float *p = m->probabilities + k * VOCABULARY, largest = p[0];
    double sum = 0;
    for (int v = 1; v < VOCABULARY; ++v) largest = p[v] > largest ? p[v] : largest;
    for (int v = 0; v < VOCABULARY; ++v) sum += exp((double)p[v] - largest);
    loss += log(sum) - ((double)p[m->targets[k]] - largest);
    for (int v = 0; v < VOCABULARY; ++v) p[v] = (float)(exp((double)p[v] - largest) / sum);
    p[m->targets[k]] -= 1;
    for (int v = 0; v < VOCABULARY; ++v) p[v] /= (float)n;
  }
  return loss / n;
}

static void head_backward(Model* m) {
  const int n = m->rows * T;
  linear_backward(n, C, VOCABULARY, m->norm, m->p[EMBED], m->probabilities, m->dnorm, m->g[EMBED], NULL);
  memset(m->dx, 0, (size_t)(n * C) * sizeof *m->dx);
  layer_norm_backward(n, m->x, m->p[NORM_W], m->mean, m->scale, m->dnorm, m->dx, m->g[NORM_W], m->g[NORM_B]);
}

/* Turns dx, the gradient of what the layer gives, into that of what it takes. */
static void layer_backward(Model* m, int l) {
  const int n = m->rows * T;
  Layer* a = &m->layers[l];
  linear_backward(n, 4 * C, C, a->gelu, m->p[DOWN_W] + l * 4 * C * C, m->dx, m->dup,
                  m->g[DOWN_W] + l * 4 * C * C, m->g[DOWN_B] + l * C);
  for (int k = 0; k < n * 4 * C; ++k) m->dup[k] *= gelu_slope(a->up[k]);
  linear_backward(n, C, 4 * C, a->norm2, m->p[UP_W] + l * 4 * C * C, m->dup, m->dnorm,
                  m->g[UP_W] + l * 4 * C * C, m->g[UP_B] + l * 4 * C);
  layer_norm_backward(n, a->x2, m->p[NORM2_W] + l * C, a->mean2, a->scale2, m->dnorm, m->dx,
                      m->g[NORM2_W] + l * C, m->g[NORM2_B] + l * C);
  linear_backward(n, C, C, a->mixed, m->p[MIX_W] + l * C * C, m->dx, m->dx2, m->g[MIX_W] + l * C * C,
                  m->g[MIX_B] + l * C);
  attention_backward(m->rows, a->qkv, a->probabilities, m->dx2, m->dqkv);
  linear_backward(n, C, 3 * C, a->norm1, m->p[QKV_W] + l * 3 * C * C, m->dqkv, m->dnorm,
                  m->g[QKV_W] + l * 3 * C * C, m->g[QKV_B] + l * 3 * C);
  layer_norm_backward(n, a->x, m->p[NORM1_W] + l * C, a->mean1, a->scale1, m->dnorm, m->dx,
                      m->g[NORM1_W] + l * C, m->g[NORM1_B] + l * C);
}

static void embed_backward(Model* m) {
  for (int k = 0; k < m->rows * T; ++k)
    for (int i = 0; i < C; ++i) {
      m->g[EMBED][m->inputs[k] * C + i] += m->dx[k * C + i];
      m->g[POSITION][k % T * C + i] += m->dx[k * C + i];
    }
}

/* The embedding is unit 0, layer l is unit 1 + l, and the head is the last. */
static double forward(Model* m) {
  TESSERA_MUST(tessera_enter(m->engine, 0, TESSERA_FORWARD));
  embed(m);
  for (int l = 0; l < LAYERS; ++l) {
    TESSERA_MUST(tessera_enter(m->engine, 1 + l, TESSERA_FORWARD));
    layer_forward(m, l);
  }
  TESSERA_MUST(tessera_enter(m->engine, 1 + LAYERS, TESSERA_FORWARD));
  return head_forward(m);
}

static void backward(Model* m) {
  TESSERA_MUST(tessera_enter(m->engine, 1 + LAYERS, TESSERA_BACKWARD));
  head_backward(m);
  for (int l = LAYERS - 1; l >= 0; --l) {
    TESSERA_MUST(tessera_enter(m->engine, 1 + l, TESSERA_BACKWARD));
    layer_backward(m, l);
  }
  TESSERA_MUST(tessera_enter(m->engine, 0, TESSERA_BACKWARD));
  embed_backward(m);
}

static void make_activations(Model* m, int rows) {
  const int n = rows * T;
  m->rows = rows;
  m->inputs = take((size_t)n, sizeof(int));
  m->targets = take((size_t)n, sizeof(int));
  for (int l = 0; l < LAYERS; ++l) {
    Layer* a = &m->layers[l];
    a->x = floats(n * C), a->norm1 = floats(n * C), a->mixed = floats(n * C), a->x2 = floats(n * C);
    a->norm2 = floats(n * C), a->qkv = floats(n * 3 * C), a->up = floats(n * 4 * C),
    a->gelu = floats(n * 4 * C);
    a->mean1 = floats(n), a->scale1 = floats(n), a->mean2 = floats(n), a->scale2 = floats(n);
    a->probabilities = floats(n * HEADS * T);
  }
  m->x = floats(n * C), m->norm = floats(n * C), m->mean = floats(n), m->scale = floats(n);
  m->probabilities = floats(n * VOCABULARY);
  m->dx = floats(n * C), m->dx2 = floats(n * C), m->dnorm = floats(n * C);
  m->dqkv = floats(n * 3 * C), m->dup = floats(n * 4 * C);
}

static int64_t total_numel(void) {
  int64_t total = 0;
  for (int array = 0; array < ARRAYS; ++array) total += kNumel[array];
  return total;
}

/* All arrays, one behind the other. */
static float* initial_values(void) {
  float* values = floats(total_numel());
  uint32_t state = 42;
  float* next = values;
  for (int array = 0; array < ARRAYS; next += kNumel[array], ++array) {
    const int is_scale = array == NORM1_W || array == NORM2_W || array == NORM_W;
    const int is_matrix = array == EMBED || array == POSITION || array == QKV_W || array == MIX_W ||
                          array == UP_W || array == DOWN_W;
    for (int64_t k = 0; k < kNumel[array]; ++k) {
      state = state * 1664525u + 1013904223u; /* a linear congruential generator, Numerical Recipes */
      next[k] = is_scale ? 1.0f : is_matrix ? 0.08f * ((float)(state >> 8) / 16777216.0f - 0.5f) : 0.0f;
    }
  }
  return values;
}

static unsigned char* read_file(const char* path, long* bytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (*bytes = ftell(file)) < 2 * T) {
    fprintf(stderr, "%s: cannot be read, or has fewer than %d bytes\n", path, 2 * T);
    exit(2);
  }
  unsigned char* text = take((size_t)*bytes, 1);
  rewind(file);
  if (fread(text, 1, (size_t)*bytes, file) != (size_t)*bytes) {
    fprintf(stderr, "%s: cannot be read\n", path);
    exit(2);
  }
  fclose(file);
  return text;
}

/* Sequences first, first + 1, ... of the file, which repeats. */
static void load_batch(Model* m, const unsigned char* text, long bytes, int64_t first) {
  for (int k = 0; k < m->rows * T; ++k) {
    const int64_t at = (first * T + k) % (bytes - 1);
    m->inputs[k] = text[at];
    m->targets[k] = text[at + 1];
  }
}

static void make_engine(Model* m, tessera_world* world, int stage) {
  tessera_array arrays[ARRAYS] = {0};
  tessera_options options;
  for (int array = 0; array < ARRAYS; ++array) {
    arrays[array].numel = kNumel[array];
    if (array >= NORM1_W && array <= DOWN_B) arrays[array].first_unit = 1, arrays[array].units = LAYERS;
    if (array >= NORM_W) arrays[array].first_unit = 1 + LAYERS;
  }
  arrays[EMBED].also_in = 1 + LAYERS; /* the head's matrix */
  TESSERA_MUST(tessera_options_init(&options, sizeof options));
  options.stage = stage;
  options.weight_decay = 0.01;
  TESSERA_MUST(tessera_engine_create_arrays(world, arrays, ARRAYS, &options, &m->engine));
  TESSERA_MUST(tessera_bind(m->engine, m->p, m->g));
}

static tessera_status run_rank(tessera_world* world, int argc, char** argv) {
  Model m;
  long bytes;
  int32_t rank, ranks;
  tessera_step_result result;
  TESSERA_MUST(tessera_world_rank(world, &rank));
  TESSERA_MUST(tessera_world_ranks(world, &ranks));
  if (BATCH % ranks != 0) {
    fprintf(stderr, "%d ranks do not divide a batch of %d\n", ranks, BATCH);
    return TESSERA_USER;
  }
  unsigned char* text = read_file(argv[1], &bytes);
  const int steps = number(argc, argv, 2, "STEPS", 1, 1000000, 20);
  float* values = initial_values();
  make_engine(&m, world, number(argc, argv, 3, "STAGE", 0, 3, 0));
  TESSERA_MUST(tessera_write_arrays(m.engine, values));
  free(values);
  make_activations(&m, BATCH / ranks);
  for (int step = 1; step <= steps; ++step) {
    load_batch(&m, text, bytes, (int64_t)step * BATCH + rank * m.rows);
    TESSERA_MUST(tessera_begin(m.engine, TESSERA_TRAIN, 1));
    const double loss = forward(&m);
    backward(&m);
    TESSERA_MUST(tessera_step_mean(m.engine, 1e-3, loss, &result));
    if (rank == 0) printf("step %2d  loss %.9f\n", step, result.loss);
  }
  return tessera_engine_destroy(m.engine);
}

int main(int argc, char** argv) {
  check_usage(argc, argv, 4);
  return tessera_launch(argc, argv, number(argc, argv, 4, "RANKS", 1, BATCH, 1), run_rank);
}
