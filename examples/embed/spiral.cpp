// A plain C++ trainer, with forward and backward loops of its own, made to run on several ranks by
// tessera::Engine: an MLP that tells the two arms of a spiral apart.
//
//   spiral [RANKS [STAGE [STEPS]]]        one rank, stage 0 and 300 steps where not given
//
// What the engine adds to a trainer: lease a unit around its compute, read parameters and write gradients
// through the lease, and call step() at the end. Nothing else here knows that there are ranks, except which
// samples are whose.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "../arguments.h"
#include "tessera/engine.h"
#include "tessera/philox.h"

using namespace tessera;

namespace {

constexpr char kUsage[] = "usage: spiral [RANKS [STAGE [STEPS]]]\n";
constexpr int kWidth = 96, kBatch = 1024, kTest = 2000;

struct Layer {
  int in, out;
};
constexpr Layer kLayers[] = {{2, kWidth}, {kWidth, kWidth}, {kWidth, 2}};
constexpr int kLayerCount = 3;

struct Sample {
  float x, y;
  int arm;
};

// Sample `index` of an endless stream, the same for every number of ranks.
Sample sample(std::uint64_t stream, std::uint64_t index) {
  const int arm = static_cast<int>(index % 2);
  const double radius = 0.1 + 0.9 * uniform(1, stream, index);
  const double angle = 9.0 * radius + arm * 3.14159265;
  const auto noise = normal_pair(2, stream, index);
  return {static_cast<float>(radius * std::cos(angle) + 0.01 * noise[0]),
          static_cast<float>(radius * std::sin(angle) + 0.01 * noise[1]), arm};
}

std::vector<UnitSpec> units() {
  std::vector<UnitSpec> units;
  for (int k = 0; k < kLayerCount; ++k) {
    const std::string name = "layer" + std::to_string(k);
    units.push_back({name,
                     {{.name = name + ".weight", .shape = {kLayers[k].in, kLayers[k].out}},
                      {.name = name + ".bias", .shape = {kLayers[k].out}}}});
  }
  return units;
}

class Spiral {
 public:
  explicit Spiral(Engine& engine, int rows) : engine_(engine), rows_(rows) {
    for (const Layer& layer : kLayers) values_.emplace_back(static_cast<std::size_t>(rows * layer.in));
    values_.emplace_back(static_cast<std::size_t>(rows * 2));
    gradients_ = values_;
  }

  // Loads rows `first` … of a stream, runs forward, and returns how many rows it got right.
  int forward(std::uint64_t stream, std::uint64_t first) {
    arms_.resize(static_cast<std::size_t>(rows_));
    for (int row = 0; row < rows_; ++row) {
      const Sample s = sample(stream, first + static_cast<std::uint64_t>(row));
      values_[0][static_cast<std::size_t>(2 * row)] = s.x;
      values_[0][static_cast<std::size_t>(2 * row) + 1] = s.y;
      arms_[static_cast<std::size_t>(row)] = s.arm;
    }
    for (int k = 0; k < kLayerCount; ++k) {
      UnitLease lease = engine_.use(k, Pass::forward);
      layer_forward(k, weight(lease, k), bias(lease, k));
      lease.end();
    }
    return softmax();
  }

  void backward() {
    for (int k = kLayerCount - 1; k >= 0; --k) {
      UnitLease lease = engine_.use(k, Pass::backward);
      layer_backward(k, lease);
      lease.end();
    }
  }

  double loss() const { return loss_; }

 private:
  static const float* weight(const UnitLease& lease, int k) {
    return static_cast<const float*>(lease.parameter(2 * k).data);
  }
  static const float* bias(const UnitLease& lease, int k) {
    return static_cast<const float*>(lease.parameter(2 * k + 1).data);
  }

  void layer_forward(int k, const float* w, const float* b) {
    const auto [in, out] = kLayers[k];
    for (int row = 0; row < rows_; ++row) {
      const float* x = values_[static_cast<std::size_t>(k)].data() + row * in;
      float* y = values_[static_cast<std::size_t>(k) + 1].data() + row * out;
      for (int o = 0; o < out; ++o) y[o] = b[o];
      for (int i = 0; i < in; ++i)
        for (int o = 0; o < out; ++o) y[o] += x[i] * w[i * out + o];
      if (k + 1 < kLayerCount)
        for (int o = 0; o < out; ++o) y[o] = y[o] > 0 ? y[o] : 0.01f * y[o];
    }
  }

  // Turns the last values into the gradient of Σ loss.
  int softmax() {
    int right = 0;
    loss_ = 0;
    for (int row = 0; row < rows_; ++row) {
      const float* y = values_[kLayerCount].data() + 2 * row;
      const int arm = arms_[static_cast<std::size_t>(row)];
      const float p1 = 1.0f / (1.0f + std::exp(y[0] - y[1]));
      const float p[2] = {1.0f - p1, p1};
      loss_ -= std::log(std::fmax(p[arm], 1e-30f));
      right += (p1 > 0.5f) == (arm == 1);
      for (int c = 0; c < 2; ++c)
        gradients_[kLayerCount][static_cast<std::size_t>(2 * row + c)] = p[c] - (c == arm ? 1.0f : 0.0f);
    }
    return right;
  }

  void layer_backward(int k, const UnitLease& lease) {
    const auto [in, out] = kLayers[k];
    const float* w = weight(lease, k);
    float* dw = lease.gradient(2 * k).as<float>().data();  // zeros at first
    float* db = lease.gradient(2 * k + 1).as<float>().data();
    for (int row = 0; row < rows_; ++row) {
      const float* x = values_[static_cast<std::size_t>(k)].data() + row * in;
      const float* y = values_[static_cast<std::size_t>(k) + 1].data() + row * out;
      float* dy = gradients_[static_cast<std::size_t>(k) + 1].data() + row * out;
      float* dx = gradients_[static_cast<std::size_t>(k)].data() + row * in;
      if (k + 1 < kLayerCount)
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

  Engine& engine_;
  int rows_;
  std::vector<std::vector<float>> values_, gradients_;
  std::vector<int> arms_;
  double loss_ = 0;
};

void run_rank(const Communicator& world, int stage, int steps) {
  EngineOptions options;
  options.mesh.shard = world.world();
  options.strategy.placements = Placements::of_stage(stage);
  options.programs = {{.kind = StepKind::train}, {.kind = StepKind::evaluate}};
  options.optimizer.options = AdamWOptions{.weight_decay = 0.0};
  Engine engine(world, units(), options);
  engine.initialize([&](ParameterId id, std::int64_t begin, std::span<float> values) {
    const bool is_bias = id % 2 == 1;
    const double deviation = std::sqrt(2.0 / kLayers[id / 2].in);
    for (std::size_t k = 0; k < values.size(); ++k) {
      const auto index = static_cast<std::uint64_t>(begin) + k;
      values[k] =
          is_bias ? 0.0f : static_cast<float>(deviation * normal(3, static_cast<std::uint64_t>(id), index));
    }
  });

  const int rows = kBatch / world.world();
  Spiral spiral(engine, rows);
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < steps; ++step) {
    engine.begin(StepKind::train);
    spiral.forward(0, static_cast<std::uint64_t>(step * kBatch + world.rank() * rows));
    spiral.backward();
    const StepResult result =
        engine.step({.learning_rate = 3e-3, .weight = static_cast<double>(rows), .loss = spiral.loss()});
    if (world.rank() == 0 && step % 50 == 49)
      std::printf("step %3d  loss %.4f  gradient norm %.3f\n", step + 1, result.loss, result.gradient_norm);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  Spiral test(engine, kTest / world.world());
  engine.begin(StepKind::evaluate);
  const int right = test.forward(1, static_cast<std::uint64_t>(world.rank() * (kTest / world.world())));
  // The step's sums are over all ranks: Σ right / Σ rows is the accuracy.
  const StepResult result =
      engine.step({.weight = static_cast<double>(kTest / world.world()), .loss = static_cast<double>(right)});
  if (world.rank() == 0)
    std::printf("ranks %d  stage %d  accuracy %.4f  seconds %.3f\n", world.world(), stage, result.loss,
                seconds);
}

}  // namespace

int main(int argc, char** argv) try {
  if (const auto status = examples::shows_usage(argc, argv, 0, 3, kUsage)) return *status;
  const int ranks = argc > 1 ? examples::whole_number("RANKS", argv[1], 1, kBatch) : 1;
  const int stage = argc > 2 ? examples::whole_number("STAGE", argv[2], 0, 3) : 0;
  const int steps = argc > 3 ? examples::whole_number("STEPS", argv[3], 1, 1'000'000) : 300;
  run_local(ranks, {}, [&](const Communicator& world) { run_rank(world, stage, steps); });
  return 0;
} catch (const UsageError& error) {
  std::fprintf(stderr, "spiral: %s\n%s", error.what(), kUsage);
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "spiral: %s\n", error.what());
  return 1;
}
