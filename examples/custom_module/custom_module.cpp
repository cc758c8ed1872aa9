// A module of one's own, trained by Tessera's Trainer: the block y = x + tanh(x·Wᵀ), between a layer that
// reads the batch and a loss.
//
// The block declares its compute as values and parts. So the plan knows every byte, a recompute runs only
// what is missing, and the memory of `bent` is its gradient's before the backward is over:
//
//   forward    product: x → sum     bend: sum → bent     add: x, bent → y
//   backward   bend: bent, dy → dsum (over bent)     weight: x, dsum → dW     product: dsum, dy → dx
//
// With full recompute, forward's product and bend run again before the backward, and nothing else. The losses
// are the same, bit for bit.
//   custom_module [STEPS]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "../arguments.h"
#include "tessera/trainer.h"

namespace {

using namespace tessera;

constexpr char kUsage[] = "usage: custom_module [STEPS]\n";
constexpr std::int64_t kInputs = 8, kChannels = 32, kBlocks = 3;

const float* floats(const void* memory) { return static_cast<const float*>(memory); }
float* floats(void* memory) { return static_cast<float*>(memory); }

// out [rows, n] = in [rows, m] · weight [n, m]ᵀ
void product(std::int64_t rows, std::int64_t m, std::int64_t n, const float* in, const float* weight,
             float* out) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < m; ++k) sum += in[row * m + k] * weight[j * m + k];
      out[row * n + j] = sum;
    }
}

// gradient [n, m] = beta · gradient + out_gradient [rows, n]ᵀ · in [rows, m]
void weight_gradient(std::int64_t rows, std::int64_t m, std::int64_t n, const float* in,
                     const float* out_gradient, float beta, float* gradient) {
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t k = 0; k < m; ++k) {
      float sum = beta == 0 ? 0.0f : gradient[j * m + k];
      for (std::int64_t row = 0; row < rows; ++row) sum += out_gradient[row * n + j] * in[row * m + k];
      gradient[j * m + k] = sum;
    }
}

ParameterSpec matrix(const std::string& unit, std::int64_t out, std::int64_t in) {
  return {.name = unit + ".weight", .shape = {out, in}};
}

// A unit of one part for each pass declares its sizes only: this one keeps nothing.
class Lift final : public Module {
 public:
  std::vector<ParameterSpec> parameters() const override { return {matrix("lift", kChannels, kInputs)}; }
  bool parameters_read_in_forward_only() const override { return true; }
  std::vector<Initial> initials() const override { return {{Initial::Kind::normal, 0.3}}; }
  ModuleNeeds needs(const BatchShape& shape, const Target&) const override {
    return {.activations = UnitActivations{.output_bytes = shape.sequences * kChannels * 4}};
  }
  void run(int part, const ModuleContext& context) override {
    const std::int64_t rows = context.shape.sequences;
    if (part == UnitGraph::kBackward)
      weight_gradient(rows, kInputs, kChannels, floats(context.batch), floats(context.output_gradient),
                      context.betas[0], floats(context.gradients[0]));
    else
      product(rows, kInputs, kChannels, floats(context.batch), floats(context.parameters[0]),
              floats(context.output));
  }
};

class Block final : public Module {
 public:
  explicit Block(std::string name) : name_(std::move(name)) {}

  std::vector<ParameterSpec> parameters() const override { return {matrix(name_, kChannels, kChannels)}; }
  std::vector<Initial> initials() const override { return {{Initial::Kind::normal, 0.1}}; }

  ModuleNeeds needs(const BatchShape& shape, const Target&) const override {
    const std::int64_t bytes = shape.sequences * kChannels * 4;
    const double flops = 2.0 * static_cast<double>(shape.sequences * kChannels * kChannels);
    const std::vector<int> no_gradients;
    ModuleNeeds needs;
    UnitGraph& graph = needs.activations;
    graph.output_bytes = bytes;
    graph.values = {{.name = "sum", .bytes = bytes},
                    {.name = "bent", .bytes = bytes, .keep = Keep::saved},
                    {.name = "sum.gradient", .bytes = bytes, .over = kBent}};
    graph.parts = {
        {.name = "product", .reads = {SharedValue::input}, .writes = {kSum}, .flops = flops},
        {.name = "bend", .reads = {kSum}, .writes = {kBent}},
        {.name = "add", .reads = {SharedValue::input, kBent}, .writes = {SharedValue::output}},
        {.name = "bend",
         .pass = Pass::backward,
         .reads = {kBent, SharedValue::output_gradient},
         .writes = {kSumGradient},
         .gradients = no_gradients},
        {.name = "weight",
         .pass = Pass::backward,
         .reads = {SharedValue::input, kSumGradient},
         .gradients = std::vector<int>{0},
         .flops = flops},
        {.name = "product",
         .pass = Pass::backward,
         .reads = {kSumGradient, SharedValue::output_gradient},
         .writes = {SharedValue::input_gradient},
         .gradients = no_gradients,
         .flops = flops},
    };
    return needs;
  }

  void run(int part, const ModuleContext& context) override {
    const std::int64_t rows = context.shape.sequences, numel = rows * kChannels;
    float* const sum = floats(context.value(kSum));
    float* const bent = floats(context.value(kBent));
    float* const sum_gradient = floats(context.value(kSumGradient));
    const float* const input = floats(context.input);
    const float* const output_gradient = floats(context.output_gradient);
    switch (part) {
      case kProduct:
        return product(rows, kChannels, kChannels, input, floats(context.parameters[0]), sum);
      case kBend:
        for (std::int64_t k = 0; k < numel; ++k) bent[k] = std::tanh(sum[k]);
        return;
      case kAdd:
        for (std::int64_t k = 0; k < numel; ++k) floats(context.output)[k] = input[k] + bent[k];
        return;
      case kBendBackward:
        for (std::int64_t k = 0; k < numel; ++k)
          sum_gradient[k] = (1 - bent[k] * bent[k]) * output_gradient[k];
        return;
      case kWeight:
        return weight_gradient(rows, kChannels, kChannels, input, sum_gradient, context.betas[0],
                               floats(context.gradients[0]));
      default:
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t k = 0; k < kChannels; ++k) {
            float gradient = output_gradient[row * kChannels + k];
            for (std::int64_t j = 0; j < kChannels; ++j)
              gradient +=
                  sum_gradient[row * kChannels + j] * floats(context.parameters[0])[j * kChannels + k];
            floats(context.input_gradient)[row * kChannels + k] = gradient;
          }
    }
  }

 private:
  enum Value : ValueId { kSum, kBent, kSumGradient };
  enum Part { kProduct, kBend, kAdd, kBendBackward, kWeight, kProductBackward };
  std::string name_;
};

// y = x·wᵀ and the squared error. All of it is left to backward, which follows forward at once; evaluations,
// which have none, are not this example's.
class Loss final : public Module {
 public:
  std::vector<ParameterSpec> parameters() const override { return {matrix("loss", 1, kChannels)}; }
  std::vector<Initial> initials() const override { return {{Initial::Kind::normal, 0.1}}; }
  ModuleNeeds needs(const BatchShape&, const Target&) const override {
    return {.activations = UnitActivations{}};
  }
  void run(int part, const ModuleContext& context) override {
    if (part != UnitGraph::kBackward) return;
    const std::int64_t rows = context.shape.sequences;
    const float *const x = floats(context.input), *const w = floats(context.parameters[0]);
    const float* const targets = floats(context.batch) + rows * kInputs;
    float* const gradient = floats(context.gradients[0]);
    if (context.betas[0] == 0) std::fill_n(gradient, kChannels, 0.0f);
    LossTotal total;
    for (std::int64_t row = 0; row < rows; ++row) {
      float y = 0;
      for (std::int64_t k = 0; k < kChannels; ++k) y += x[row * kChannels + k] * w[k];
      const float error = y - targets[row];
      total.sum += 0.5 * static_cast<double>(error) * error;
      ++total.counted;
      for (std::int64_t k = 0; k < kChannels; ++k) {
        gradient[k] += context.loss_scale * error * x[row * kChannels + k];
        floats(context.input_gradient)[row * kChannels + k] = context.loss_scale * error * w[k];
      }
    }
    *context.total = total;
  }
};

std::shared_ptr<const Model> make_model() {
  auto model = std::make_shared<Model>();
  model->name = "bent";
  model->names.push_back("lift");
  model->modules.push_back(std::make_unique<Lift>());
  for (int block = 0; block < kBlocks; ++block) {
    model->names.push_back("block." + std::to_string(block));
    model->modules.push_back(std::make_unique<Block>(model->names.back()));
  }
  model->names.push_back("loss");
  model->modules.push_back(std::make_unique<Loss>());
  model->batch_bytes = [](const BatchShape& shape) { return shape.sequences * (kInputs + 1) * 4; };
  return model;
}

// On two shards of everything. The losses that both ranks see.
std::vector<double> train(int steps, Recompute recompute) {
  const std::shared_ptr<const Model> model = make_model();
  TrainerOptions options;
  options.engine.mesh.shard = 2;
  options.engine.strategy.placements = Placements::of_stage(3);
  options.engine.strategy.recompute = recompute;
  options.batch = {.sequences = 64};
  std::vector<double> losses;
  run_local(2, {}, [&](Communicator world) {
    Trainer trainer(world, model, options);
    for (int step = 0; step < steps; ++step) {
      const StepResult result = trainer.train_step(0.003, [&](int, void* batch) {
        float* const inputs = floats(batch);
        float* const targets = inputs + 64 * kInputs;
        for (std::int64_t row = 0; row < 64; ++row) {
          const std::int64_t number = step * 128 + world.rank() * 64 + row;
          for (std::int64_t k = 0; k < kInputs; ++k)
            inputs[row * kInputs + k] =
                static_cast<float>((number * 37 + k * 11 + number * k) % 23 - 11) / 11;
          targets[row] = std::sin(3 * inputs[row * kInputs]) * inputs[row * kInputs + 1];
        }
      });
      if (world.rank() == 0) losses.push_back(result.loss);
    }
    if (world.rank() == 0)
      std::printf("recompute %-4s: loss %.6f -> %.6f; %lld bytes a rank\n",
                  std::string(name_of(recompute)).c_str(), losses.front(), losses.back(),
                  static_cast<long long>(trainer.engine().plan().space(Space::device).arena_bytes));
  });
  return losses;
}

}  // namespace

int main(int argc, char** argv) try {
  if (const auto status = examples::shows_usage(argc, argv, 0, 1, kUsage)) return *status;
  const int steps = argc > 1 ? examples::whole_number("STEPS", argv[1], 1, 1'000'000) : 300;
  const std::vector<double> kept = train(steps, Recompute::none), again = train(steps, Recompute::full);
  if (kept != again) {
    std::fprintf(stderr, "custom_module: the losses differ\n");
    return 1;
  }
  std::puts("the same losses, bit for bit");
  return 0;
} catch (const UsageError& error) {
  std::fprintf(stderr, "custom_module: %s\n%s", error.what(), kUsage);
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "custom_module: %s\n", error.what());
  return 1;
}
