// A GPT written with libtorch, its backward left to autograd, sharded by tessera::Engine: parameters and
// gradients are views of the engine's memory, and autograd's hooks say when a unit is used.
//
//   embed_libtorch [STEPS]      12 where not given
//
// Trains without Tessera first, with torch::optim::AdamW, then on 1 and 2 ranks at stages 0 to 3. Exits with
// 1 unless every loss is within 1e-5 of that run's (the optimizers round differently), and the losses of all
// stages are the same bits.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../arguments.h"
#include "tessera/engine.h"
#include "tessera/memory_plan.h"

using tessera::Communicator;
using tessera::Engine;
using tessera::EngineOptions;
using tessera::OrderRecorder;
using tessera::ParameterId;
using tessera::Pass;
using tessera::StepKind;
using tessera::UnitId;
using tessera::UnitLease;
using tessera::UnitSpec;
using torch::Tensor;

namespace {

constexpr char kUsage[] = "usage: embed_libtorch [STEPS]\n";
constexpr std::int64_t kVocabulary = 64, kLength = 32, kChannels = 64, kHeads = 4, kLayers = 6,
                       kSequences = 8;
constexpr double kLearningRate = 3e-3, kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8, kWeightDecay = 0.1;

// The model: modules as anyone writes them for libtorch. Each is a unit.
struct UnitModule : torch::nn::Module {
  virtual Tensor forward(Tensor x) = 0;
};
using Model = std::vector<std::shared_ptr<UnitModule>>;

struct Embed : UnitModule {
  torch::nn::Embedding token = register_module("token", torch::nn::Embedding(kVocabulary, kChannels));
  torch::nn::Embedding position = register_module("position", torch::nn::Embedding(kLength, kChannels));

  Tensor forward(Tensor x) override { return token(x) + position(torch::arange(x.size(1))); }
};

struct Block : UnitModule {
  torch::nn::LayerNorm norm1 = register_module("norm1", torch::nn::LayerNorm(std::vector{kChannels}));
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(kChannels, 3 * kChannels));
  torch::nn::Linear projection = register_module("projection", torch::nn::Linear(kChannels, kChannels));
  torch::nn::LayerNorm norm2 = register_module("norm2", torch::nn::LayerNorm(std::vector{kChannels}));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kChannels, 4 * kChannels));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(4 * kChannels, kChannels));

  Tensor attend(const Tensor& x) {
    const auto parts = qkv(x).view({x.size(0), x.size(1), 3, kHeads, kChannels / kHeads}).unbind(2);
    const Tensor q = parts[0].transpose(1, 2), k = parts[1].transpose(1, 2), v = parts[2].transpose(1, 2);
    const Tensor future = torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1);
    const Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(kChannels / kHeads));
    const Tensor mixed = scores.masked_fill(future, -INFINITY).softmax(-1).matmul(v);
    return projection(mixed.transpose(1, 2).reshape(x.sizes()));
  }

  Tensor forward(Tensor x) override {
    x = x + attend(norm1(x));
    return x + down(torch::gelu(up(norm2(x))));
  }
};

struct Head : UnitModule {
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(std::vector{kChannels}));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(kChannels, kVocabulary));

  Tensor forward(Tensor x) override { return linear(norm(x)); }
};

Model make_model() {
  Model model{std::make_shared<Embed>()};
  for (std::int64_t layer = 0; layer < kLayers; ++layer) model.push_back(std::make_shared<Block>());
  model.push_back(std::make_shared<Head>());
  return model;
}

// Sequences [first, first + count) of a step: each token follows from the one before it.
Tensor make_tokens(std::int64_t step, std::int64_t first, std::int64_t count) {
  Tensor tokens = torch::empty({count, kLength + 1}, torch::kLong);
  for (std::int64_t row = 0; row < count; ++row) {
    std::int64_t token = (step * kSequences + first + row) * 29 % kVocabulary;
    for (std::int64_t i = 0; i <= kLength; ++i, token = (5 * token + 3) % kVocabulary) tokens[row][i] = token;
  }
  return tokens;
}

// Σ loss over the tokens.
Tensor loss_of(const Tensor& logits, const Tensor& tokens) {
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), tokens.slice(1, 1).flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

Tensor inputs_of(const Tensor& tokens) { return tokens.slice(1, 0, kLength); }

// Calls back when autograd has added the gradient of a parameter.
struct AfterGradient final : torch::autograd::FunctionPostHook {
  explicit AfterGradient(std::function<void()> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    call_();
    return outputs;
  }
  std::function<void()> call_;
};

// Runs a model unit by unit. A unit's forward use is its module's forward; its backward use lasts from when
// the gradient of its output is known to when autograd has added the last of its parameters' gradients.
// Autograd runs on the thread that calls backward(), so every call to the engine comes from the rank's own.
class ShardedModel {
 public:
  explicit ShardedModel(Model model)
      : model_(std::move(model)), left_(model_.size()), leases_(model_.size()) {
    for (std::size_t u = 0; u < model_.size(); ++u)
      for (const Tensor& parameter : model_[u]->parameters()) {
        accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter));
        accumulators_.back()->add_post_hook(std::make_unique<AfterGradient>([this, u] {
          if (--left_[u] == 0) end(u, Pass::backward);
        }));
      }
  }
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  std::vector<UnitSpec> units() const {
    std::vector<UnitSpec> units;
    for (std::size_t u = 0; u < model_.size(); ++u) {
      units.push_back({.name = "unit" + std::to_string(u), .parameters = {}});
      for (const auto& item : model_[u]->named_parameters())
        units[u].parameters.push_back(
            {.name = units[u].name + "." + item.key(), .shape = item.value().sizes().vec()});
    }
    return units;
  }

  // From here on uses are the engine's, and parameters live in its memory. Before, they are recorded.
  void attach(Engine& engine) { engine_ = &engine; }
  const OrderRecorder& recorder() const { return recorder_; }

  Tensor forward(Tensor x) {
    for (std::size_t u = 0; u < model_.size(); ++u) {
      begin(u, Pass::forward);
      x = model_[u]->forward(x);
      end(u, Pass::forward);
      x.register_hook([this, u](const Tensor&) { begin(u, Pass::backward); });
    }
    return x;
  }

 private:
  void begin(std::size_t u, Pass pass) {
    const auto unit = static_cast<UnitId>(u);
    if (pass == Pass::backward) left_[u] = model_[u]->parameters().size();
    if (engine_ == nullptr) return recorder_.begin(unit, pass);
    leases_[u].emplace(engine_->use(unit, pass));
    ParameterId id = engine_->layout().first_parameter(unit);
    for (Tensor& parameter : model_[u]->parameters()) bind(*leases_[u], id++, parameter);
  }

  void end(std::size_t u, Pass pass) {
    if (engine_ == nullptr) return recorder_.end(static_cast<UnitId>(u), pass);
    for (Tensor& parameter : model_[u]->parameters()) parameter.mutable_grad().reset();
    leases_[u]->end();
    leases_[u].reset();
  }

  // All gathers of a unit use one address, so what autograd saved in forward is there again in backward.
  static void bind(const UnitLease& lease, ParameterId id, Tensor& parameter) {
    void* const data = lease.parameter(id).data;
    if (parameter.data_ptr() != data) parameter.set_data(torch::from_blob(data, parameter.sizes()));
    if (lease.pass() == Pass::backward)  // autograd adds to a gradient that is there
      parameter.mutable_grad() = torch::from_blob(lease.gradient(id).data, parameter.sizes());
  }

  // A shared_ptr or, in later versions, an intrusive_ptr to a node.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(Tensor()));

  Model model_;
  Engine* engine_ = nullptr;
  OrderRecorder recorder_;
  std::vector<Accumulator> accumulators_;  // kept here: a tensor does not keep its own
  std::vector<std::size_t> left_;          // of a unit in backward: parameters without their gradient
  std::vector<std::optional<UnitLease>> leases_;
};

// The parameters of all units, by ParameterId.
std::vector<Tensor> parameters_of(const Model& model) {
  std::vector<Tensor> parameters;
  for (const auto& module : model)
    for (const Tensor& parameter : module->parameters()) parameters.push_back(parameter);
  return parameters;
}

EngineOptions engine_options(int ranks, int stage) {
  EngineOptions options;
  options.mesh.shard = ranks;
  options.strategy.placements = tessera::Placements::of_stage(stage);
  options.optimizer.options = tessera::AdamWOptions{
      .beta1 = kBeta1, .beta2 = kBeta2, .epsilon = kEpsilon, .weight_decay = kWeightDecay};
  options.debug.poison = true;  // costs time, and proves that nothing is read outside its lifetime
  return options;
}

struct Run {
  std::vector<double> losses;
  double mebibytes = 0;  // of the engine, on one rank
};

Run train_rank(const Communicator& world, int stage, int steps, const std::vector<Tensor>& initial) {
  ShardedModel model(make_model());
  // One backward, without an engine, writes the order of the uses down.
  const Tensor sample = make_tokens(0, 0, 1);
  loss_of(model.forward(inputs_of(sample)), sample).backward();
  EngineOptions options = engine_options(world.world(), stage);
  options.order = model.recorder().order();

  Engine engine(world, model.units(), options);
  engine.initialize([&](ParameterId id, std::int64_t begin, std::span<float> values) {
    const float* from = initial[static_cast<std::size_t>(id)].data_ptr<float>() + begin;
    std::copy_n(from, values.size(), values.begin());
  });
  model.attach(engine);
  Run run;
  run.mebibytes = static_cast<double>(engine.plan().space(tessera::Space::device).arena_bytes) / (1 << 20);
  const std::int64_t own = kSequences / world.world();
  for (int step = 0; step < steps; ++step) {
    const Tensor tokens = make_tokens(step, world.rank() * own, own);
    engine.begin(StepKind::train);
    const Tensor loss = loss_of(model.forward(inputs_of(tokens)), tokens);
    loss.backward();
    const tessera::StepResult result = engine.step({.learning_rate = kLearningRate,
                                                    .weight = static_cast<double>(own * kLength),
                                                    .loss = loss.item<double>()});
    run.losses.push_back(result.loss);
  }
  return run;
}

Run train_with_tessera(int ranks, int stage, int steps, const std::vector<Tensor>& initial) {
  Run run;
  tessera::run_local(ranks, {}, [&](const Communicator& world) {
    const Run own = train_rank(world, stage, steps, initial);
    if (world.rank() == 0) run = own;
  });
  return run;
}

// The same model by libtorch alone; changes its parameters.
Run train_alone(const Model& model, int steps) {
  torch::optim::AdamW optimizer(parameters_of(model), torch::optim::AdamWOptions(kLearningRate)
                                                          .betas({kBeta1, kBeta2})
                                                          .eps(kEpsilon)
                                                          .weight_decay(kWeightDecay));
  Run run;
  for (int step = 0; step < steps; ++step) {
    const Tensor tokens = make_tokens(step, 0, kSequences);
    Tensor x = inputs_of(tokens);
    for (const auto& module : model) x = module->forward(x);
    const Tensor loss = loss_of(x, tokens) / static_cast<double>(kSequences * kLength);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    run.losses.push_back(loss.item<double>());
  }
  return run;
}

// Prints the run, and whether it is as it has to be. The first stage of a number of ranks sets the bits.
bool report(int ranks, int stage, const Run& run, const Run& alone, const Run& first_stage) {
  double difference = 0;
  for (std::size_t step = 0; step < run.losses.size(); ++step)
    difference = std::max(difference, std::abs(run.losses[step] - alone.losses[step]));
  const bool same = run.losses == first_stage.losses;
  const bool good = same && difference <= 1e-5;
  std::printf(
      "tessera, ranks %d  stage %d  last loss %.6f  MiB a rank %.2f  difference to libtorch %.1e  %s%s\n",
      ranks, stage, run.losses.back(), run.mebibytes, difference,
      same ? "bits as at stage 0" : "OTHER BITS THAN AT STAGE 0", good ? "" : "  WRONG");
  return good;
}

}  // namespace

int main(int argc, char** argv) try {
  if (const auto status = examples::shows_usage(argc, argv, 0, 1, kUsage)) return *status;
  const int steps = argc > 1 ? examples::whole_number("STEPS", argv[1], 1, 1'000'000) : 12;
  torch::set_num_threads(1);  // of each rank
  torch::manual_seed(1);
  const Model model = make_model();
  std::vector<Tensor> initial;
  for (const Tensor& parameter : parameters_of(model)) initial.push_back(parameter.detach().clone());

  const Run alone = train_alone(model, steps);
  std::printf("libtorch alone: loss %.6f at first, %.6f at last\n", alone.losses.front(),
              alone.losses.back());
  bool good = true;
  for (const int ranks : {1, 2}) {
    Run first_stage;
    for (int stage = 0; stage <= 3; ++stage) {
      const Run run = train_with_tessera(ranks, stage, steps, initial);
      if (stage == 0) first_stage = run;
      good = report(ranks, stage, run, alone, first_stage) && good;
    }
  }
  return good ? 0 : 1;
} catch (const tessera::UsageError& error) {
  std::fprintf(stderr, "embed_libtorch: %s\n%s", error.what(), kUsage);
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "embed_libtorch: %s\n", error.what());
  return 1;
}
