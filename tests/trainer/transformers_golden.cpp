// Compares a training step with the one that Hugging Face's transformers made of the same weights and tokens.
//
//   transformers_golden FILE...      exits 1 unless |ours − theirs| ≤ 1e-5 · max |theirs| in every tensor
//
// benchmarks/peers/transformers_parity.py writes the files: weights, "tokens", and what it computed in fp32:
// "logits", "loss" and, for each weight, "NAME.grad". Those of peft_parity.py have adapters, and gradients of
// these only. Each is run on 1 and 2 ranks at stages 0 and 3.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mutex>

#include "tessera/hugging_face.h"
#include "tessera/model.h"
#include "tessera/trainer.h"
#include "tests/trainer/safetensors_file.h"

namespace tessera::testing {
namespace {

constexpr double kTolerance = 1e-5;

struct Golden {
  std::string path;
  SafetensorsFile file;
  nlohmann::json config;
  std::int64_t sequences = 0, length = 0;  // of the inputs; tokens are [sequences, length + 1]

  explicit Golden(const std::string& path_in) : path(path_in), file(path_in) {
    const nlohmann::json& metadata = file.header.at("__metadata__");
    config = nlohmann::json::parse(metadata.at("config").get<std::string>());
    sequences = file.header.at("tokens").at("shape")[0];
    length = file.header.at("tokens").at("shape")[1].get<std::int64_t>() - 1;
  }
};

Lora lora_of(const nlohmann::json& config) {
  if (!config.contains("lora")) return {};
  const nlohmann::json& lora = config.at("lora");
  return {.rank = lora.at("rank"), .alpha = lora.at("alpha"), .targets = lora.at("targets")};
}

Model model_of(const nlohmann::json& config) {
  if (config.at("family") == "gpt2")
    return make_gpt2({.vocabulary = config.at("vocabulary"),
                      .context = config.at("context"),
                      .layers = config.at("layers"),
                      .heads = config.at("heads"),
                      .channels = config.at("channels"),
                      .lora = lora_of(config)},
                     DType::fp32);
  return make_llama({.vocabulary = config.at("vocabulary"),
                     .context = config.at("context"),
                     .layers = config.at("layers"),
                     .heads = config.at("heads"),
                     .kv_heads = config.at("kv_heads"),
                     .channels = config.at("channels"),
                     .hidden = config.at("hidden"),
                     .rope_theta = config.at("rope_theta"),
                     .norm_epsilon = config.at("norm_epsilon"),
                     .tied = config.at("tied"),
                     .lora = lora_of(config)},
                    DType::fp32);
}

// The worst tensor of a comparison. NaN is worse than anything.
struct Worst {
  double error = 0.0;  // over the tensor's largest value
  std::string tensor;
  int tensors = 0;

  void add(const std::string& name, const std::vector<float>& ours, const std::vector<float>& theirs) {
    if (ours.size() != theirs.size())
      throw std::runtime_error(
          fmt::format("{} has {} elements here and {} there", name, ours.size(), theirs.size()));
    double difference = 0.0, largest = 0.0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const double one = std::abs(static_cast<double>(ours[i]) - theirs[i]);
      if (!(one <= difference)) difference = one;
      largest = std::max(largest, std::abs(static_cast<double>(theirs[i])));
    }
    ++tensors;
    if (const double relative = difference / largest; tensors == 1 || !(relative <= error)) {
      error = relative;
      tensor = name;
    }
  }
};

// A tensor of the file out of the parameter that holds it.
std::vector<float> stored(const StoredTensor& tensor, const std::vector<float>& parameter) {
  const auto numel = static_cast<std::size_t>(numel_of(tensor.shape));
  std::vector<float> values(parameter.begin() + tensor.begin,
                            parameter.begin() + tensor.begin + static_cast<std::ptrdiff_t>(numel));
  if (!tensor.transposed) return values;
  const auto rows = static_cast<std::size_t>(tensor.shape[0]), columns = numel / rows;
  std::vector<float> result(numel);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) result[r * columns + c] = values[c * rows + r];
  return result;
}

TrainerOptions options_of(const Golden& golden, int ranks, int stage) {
  TrainerOptions options;
  options.engine.mesh.shard = ranks;
  options.engine.strategy.placements = Placements::of_stage(stage);
  // With beta1 = 0 the first moment is the mean gradient of the last step.
  options.engine.optimizer = {.options = AdamWOptions{.beta1 = 0.0},
                              .groups = {{.name = "decay"}, {.name = "no_decay"}}};
  options.batch = {.sequences = golden.sequences / ranks, .length = golden.length};
  options.generation = true;
  options.cached_tokens = golden.length;
  options.prompt_rows = 3;
  return options;
}

// The logits behind every prefix of every sequence, [sequences, length, vocabulary].
std::vector<float> logits_of(Trainer& trainer, const Golden& golden, std::span<const std::int32_t> tokens) {
  std::vector<float> logits;
  for (std::int64_t sequence = 0; sequence < golden.sequences; ++sequence)
    for (std::int64_t length = 1; length <= golden.length; ++length) {
      const std::vector<float> row = trainer.logits(tokens.subspan(
          static_cast<std::size_t>(sequence * (golden.length + 1)), static_cast<std::size_t>(length)));
      logits.insert(logits.end(), row.begin(), row.end());
    }
  return logits;
}

// The same with cached keys and values: a few tokens of each sequence at once, then one by one.
std::vector<float> cached_logits_of(Trainer& trainer, const Golden& golden,
                                    std::span<const std::int32_t> tokens) {
  std::vector<float> logits;
  for (std::int64_t sequence = 0; sequence < golden.sequences; ++sequence) {
    const auto row_of = [&](std::int64_t first, std::int64_t count) {
      return trainer.extend(tokens.subspan(static_cast<std::size_t>(sequence * (golden.length + 1) + first),
                                           static_cast<std::size_t>(count)));
    };
    const std::int64_t at_once = golden.length / 2;
    for (std::int64_t length = 1; length <= golden.length; ++length) {
      if (length <= at_once) trainer.rewind(0);
      const std::vector<float> row = length <= at_once ? row_of(0, length) : row_of(length - 1, 1);
      logits.insert(logits.end(), row.begin(), row.end());
    }
  }
  return logits;
}

void fetch(const Golden& golden, std::span<const std::int32_t> tokens, std::int64_t first,
           std::int64_t sequences, void* batch) {
  auto* inputs = static_cast<std::int32_t*>(batch);
  auto* targets = inputs + sequences * golden.length;
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    const std::int32_t* row = tokens.data() + (first + sequence) * (golden.length + 1);
    std::copy_n(row, golden.length, inputs + sequence * golden.length);
    std::copy_n(row + 1, golden.length, targets + sequence * golden.length);
  }
}

Worst compare(const Golden& golden, const Communicator& world, int stage) {
  const auto model = std::make_shared<const Model>(model_of(golden.config));
  const TrainerOptions options = options_of(golden, world.world(), stage);
  Trainer trainer(world, model, options);
  const bool adapted = model->lora.rank > 0;
  // Each takes its tensors of the file, and leaves those of the other.
  std::vector<WeightSource> sources = {{golden.path, hugging_face_weights(*model)}};
  if (adapted) sources.push_back({golden.path, hugging_face_adapter(*model)});
  for (WeightSource& source : sources)
    source.map.ignored = {"tokens", "logits", "loss", ".grad", ".lora_A.weight", ".lora_B.weight"};
  if (adapted) sources[1].map.ignored.insert(sources[1].map.ignored.end(), {".weight", ".bias"});
  import_safetensors(sources, world, trainer.engine());
  const WeightMap& map = sources.back().map;

  Worst worst;
  const std::vector<std::int32_t> tokens = golden.file.integers("tokens");
  worst.add("logits", logits_of(trainer, golden, tokens), golden.file.floats("logits"));
  worst.add("logits, cached", cached_logits_of(trainer, golden, tokens), golden.file.floats("logits"));
  const StepResult step = trainer.train_step(0.0, [&](int, void* batch) {
    fetch(golden, tokens, world.rank() * options.batch.sequences, options.batch.sequences, batch);
  });
  worst.add("loss", {static_cast<float>(step.loss)}, golden.file.floats("loss"));

  Engine& engine = trainer.engine();
  for (const StoredTensor& tensor : map.tensors) {
    const ParameterId id = engine.layout().find(tensor.parameter);
    std::vector<float> gradient(static_cast<std::size_t>(engine.layout().place(id).numel));
    engine.read(id, StateKind::moment1, 0, gradient);
    const std::string name = tensor.name + ".grad";
    worst.add(name, stored(tensor, gradient), golden.file.floats(name));
  }
  return worst;
}

bool agrees(const std::string& path) {
  const Golden golden(path);
  bool good = true;
  for (const int ranks : {1, 2})
    for (const int stage : {0, 3}) {
      Worst worst;
      run_local(ranks, {}, [&](const Communicator& world) {
        const Worst found = compare(golden, world, stage);
        if (world.rank() == 0) worst = found;
      });
      const bool within = worst.error <= kTolerance;
      good = good && within;
      fmt::print("{}: {} ranks, stage {}: {} tensors, the worst {} by {:.1e} of its largest value{}\n",
                 std::filesystem::path(path).stem().string(), ranks, stage, worst.tensors, worst.tensor,
                 worst.error, within ? "" : ", TOO MUCH");
    }
  return good;
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("name at least one file");
  bool good = true;
  for (int i = 1; i < argc; ++i) good = tessera::testing::agrees(argv[i]) && good;
  return good ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "transformers_golden: {}\n", error.what());
  return 1;
}
