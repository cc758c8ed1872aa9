#include "src/cli/inference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "src/cli/inference_config.h"
#include "src/cli/options.h"
#include "src/cli/places.h"
#include "src/cli/processes.h"
#include "src/cli/rank_place.h"
#include "src/cli/report.h"
#include "src/cli/starting_weights.h"
#include "tessera/checkpoint.h"
#include "tessera/launch.h"

namespace tessera::cli {

namespace {

// One rank's reading may keep the others waiting for longer than a batch may.
constexpr std::chrono::minutes kDiskDeadline{30};

std::string config_text(const std::string& path) {
  if (path.empty()) return "";
  const std::optional<std::string> text = read_text(path);
  if (!text)
    throw EnvironmentError(fmt::format("cannot read the configuration '{}': {}", path, std::strerror(errno)));
  return *text;
}

void load(const Inference& inference, const Communicator& world, Trainer& trainer, std::FILE* notes) {
  Communicator disk = world.duplicate("weights");
  disk.set_deadline(
      std::max<std::chrono::milliseconds>(kDiskDeadline, inference.setup.options.engine.waits.deadline));
  const bool first = world.rank() == 0;
  if (inference.checkpoint.empty()) {
    import_weights(inference.setup, disk, trainer, inference.named);
    if (first) fmt::print(notes, "weights   from {}\n", inference.weights.string());
    return;
  }
  const RunState state = load_weights(inference.checkpoint, disk, trainer.engine());
  if (first) fmt::print(notes, "weights   of step {} from {}\n", state.step, inference.checkpoint.string());
}

void run_rank(const Inference& inference, const TrainerOptions& options, const Communicator& world,
              const std::function<void(const InferenceRank&)>& body, std::FILE* notes) {
  const RankPlace place = place_of_rank(world, options);
  Communicator control = place.world.duplicate("control");
  Trainer trainer(place.world, inference.setup.model, place.options);
  load(inference, place.world, trainer, notes);
  body({.trainer = trainer, .control = control, .first = world.rank() == 0});
  // What comes next tells nobody: a rank's communicators between GPUs go while no peer needs them.
  control.barrier({.operation = "end of the command"});
}

}  // namespace

void add_inference_options(CLI::App& command, InferenceArguments& arguments) {
  command.add_option("--weights", arguments.weights,
                     "a Hugging Face folder, a checkpoint, or the folder of a run's checkpoints: the newest");
  command.add_option("--tokenizer", arguments.tokenizer,
                     "a tokenizer.json, or a folder that has one; by default the one beside the weights");
  add_settings(command, "--adapter",
               "an adapter of the weights, as PEFT writes it; short for --set model.adapter",
               arguments.settings, "model.adapter=");
  add_overrides(command, arguments.settings, arguments.ranks);
}

Inference make_inference(const InferenceArguments& arguments) {
  InferenceWeights weights;
  const std::string source =
      arguments.config.empty() ? "" : std::filesystem::path(arguments.config).filename().string();
  const Config config = parse_config(config_text(arguments.config), source, arguments.settings,
                                     arguments.ranks, [&](Config& read) {
                                       check_settings(read, arguments.settings);
                                       weights = find_weights(arguments.weights, read);
                                       complete_for_inference(read, weights);
                                     });
  Inference inference{.setup = make_inference_setup(config),
                      .checkpoint = weights.checkpoint,
                      .weights = weights.named,
                      .named = weights.by};
  check_threads(inference.setup);
  inference.files = weights.checkpoint.empty() ? read_kept_files(weights.named, weights.by)
                                               : kept_files(weights.checkpoint).value_or(KeptFiles());
  return inference;
}

TextTokens text_tokens(const InferenceArguments& arguments, const Inference& inference) {
  const std::int64_t vocabulary = inference.setup.model->vocabulary;
  const auto kept = inference.files.find(kTokenizerFile);
  if (arguments.tokenizer.empty() && kept == inference.files.end()) {
    if (vocabulary == 256) return {};
    throw UsageError(
        fmt::format("there is no {} beside the weights, {} '{}', whose vocabulary is {}; give one by "
                    "--tokenizer FILE (without one bytes are tokens, of a vocabulary of 256)",
                    kTokenizerFile, inference.named, inference.weights.string(), vocabulary));
  }
  const bool given = !arguments.tokenizer.empty();
  const std::string name = given ? arguments.tokenizer : (inference.weights / kTokenizerFile).string();
  const Tokenizer tokenizer = given ? Tokenizer::open(name) : Tokenizer::parse(kept->second, name);
  if (tokenizer.vocabulary() > vocabulary)
    throw UsageError(
        fmt::format("{} '{}' has {} tokens and the model a vocabulary of {}; give the model's own tokenizer "
                    "by --tokenizer",
                    given ? "--tokenizer" : "the tokenizer beside the weights,", name, tokenizer.vocabulary(),
                    vocabulary));
  return TextTokens(tokenizer);
}

void run_inference(const Inference& inference, const TrainerOptions& options,
                   const std::function<void(const InferenceRank&)>& body, std::FILE* notes) {
  const Setup& setup = inference.setup;
  const auto rank = [&](const Communicator& world) { run_rank(inference, options, world, body, notes); };
  Communicator world = world_of_processes(setup);
  check_same_run(world, setup.config, nullptr, inference.budgets_choose);
  check_disk_directory(options.engine, world);
  if (!world || world.rank() == 0) print_notes(setup.config, notes);
  if (!world)
    return run_local(setup.world(), {.deadline = options.engine.waits.deadline, .pin = setup.config.run.pin},
                     rank);
  try {
    rank(world);
  } catch (const std::exception& error) {
    world.fail(error.what());
    throw;
  }
}

}  // namespace tessera::cli
