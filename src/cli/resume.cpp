#include "src/cli/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "src/cli/run_numerics.h"
#include "tessera/numeric_differences.h"

namespace tessera::cli {

RunFolder open_run_folder(const RunConfig& run, const Communicator& world) {
  RunFolder folder;
  if (run.checkpoint.empty()) return folder;
  const std::filesystem::path named = run.checkpoint;
  if (latest_checkpoint(named, world) == named) {
    const std::filesystem::path own = std::filesystem::canonical(named);
    throw UsageError(fmt::format(
        "run.checkpoint, '{}', is one checkpoint, and a run saves beside it: name '{}', and to continue from "
        "this one write its name, {}, into the file '{}'",
        run.checkpoint, own.parent_path().string(), own.filename().string(),
        (own.parent_path() / "latest").string()));
  }
  // Held first: what is found is then no other run's last save.
  folder.lock = CheckpointLock(named, world);
  folder.continued = latest_checkpoint(named, world);
  if (folder.continued && run.resume == "false")
    throw UsageError(fmt::format(
        "run.checkpoint, '{}', has checkpoints (newest: '{}') and run.resume is false: name another "
        "folder, remove them, or resume (true or \"auto\")",
        run.checkpoint, folder.continued->string()));
  if (!folder.continued && run.resume == "true")
    throw UsageError(fmt::format("run.resume is true and there is no checkpoint in '{}'", run.checkpoint));
  return folder;
}

namespace {

std::string changes_of(const std::filesystem::path& checkpoint, const Setup& setup) try {
  const std::optional<Config> stored = stored_config(inspect_checkpoint(checkpoint).state.configuration);
  std::vector<std::string> changes =
      stored ? changes_since(*stored, setup.config) : std::vector<std::string>();
  std::erase_if(changes, [](const std::string& change) {  // of the rest it fits any
    return std::ranges::none_of(std::array{"model.", "lora.", "precision.", "optimizer."},
                                [&](const char* table) { return change.starts_with(table); });
  });
  if (changes.empty()) return "";
  return fmt::format("; changed since it was saved: {}", fmt::join(changes, ", "));
} catch (const Error&) {  // it cannot be told
  return "";
}

// How to go on from the newest of those before it, where there is one.
std::string way_out(const std::filesystem::path& checkpoint) {
  const auto older = checkpoint_before(checkpoint);
  if (!older) return "";
  return fmt::format("; to continue from {}, write that name into '{}'", older->filename().string(),
                     (older->parent_path() / "latest").string());
}

// What does not fit is told by buffers and bytes; the keys that were changed since say it to who set them.
RunState load(const std::filesystem::path& checkpoint, const Communicator& world, Engine& engine,
              const Setup& setup) {
  try {
    return load_checkpoint(checkpoint, world, engine);
  } catch (const UsageError& error) {
    throw UsageError(with_origins(error.what() + changes_of(checkpoint, setup), setup.config));
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(
        with_origins(error.what() + changes_of(checkpoint, setup) + way_out(checkpoint), setup.config));
  }
}

void print_changes(const std::optional<Config>& stored, const std::string& stored_data, const Setup& setup,
                   const Data& data, const Engine& engine) {
  if (!stored_data.empty() && stored_data != data.train_identity)
    fmt::print("changed   the data: {} -> {}\n", stored_data, data.train_identity);
  if (!stored) return fmt::print("changed   the checkpoint's configuration is of another version\n");
  for (const std::string& change : changes_since(*stored, setup.config)) {
    const bool goes_on = change.starts_with("precision.initial_scale:") && stored->precision.loss_scaling &&
                         setup.config.precision.loss_scaling;
    fmt::print("changed   {}{}\n", change,
               goes_on ? fmt::format("; the scale goes on at {}", engine.loss_scale()) : "");
  }
}

// Those of the checkpoint; none where another build saved.
std::optional<Numerics> stored_numerics(const RunState& state) {
  try {
    if (!state.numerics.empty()) return numerics_of_text(state.numerics);
  } catch (const UsageError&) {
  }
  return std::nullopt;
}

// Whether what comes now has the bits that the run would have had without the pause.
void print_numerics(const std::optional<Numerics>& stored, const Numerics& now, const Setup& setup) {
  if (!stored) return fmt::print("numerics  what decided the bits before the pause is not known\n");
  const std::vector<NumericDifference> all = differences_since(*stored, now, setup);
  if (!all.empty())
    fmt::print("numerics  other bits than without the pause may follow: {}\n",
               in_words(all[0], "now", "in the checkpoint"));
}

}  // namespace

RunState resume_run(const std::filesystem::path& checkpoint, const Communicator& world, Engine& engine,
                    const Setup& setup, const Data& data, Numerics& numerics) {
  const std::string& folder = setup.config.run.checkpoint;
  RunState state = load(checkpoint, world, engine, setup);
  if (state.tokens == 0) state.tokens = state.step * setup.tokens_per_step();
  const std::int64_t expected = state.step * setup.grid.samples_per_step();
  if (state.samples != expected)
    throw UsageError(
        fmt::format("the checkpoint in '{}' has read {} samples in {} steps; with this batch it "
                    "would have been {}: keep the product of run.sequences, run.microbatches, mesh.replicate "
                    "and mesh.shard, or that of run.sequences and run.microbatches_per_step",
                    folder, state.samples, state.step, expected));
  const std::optional<Config> stored = stored_config(state.configuration);
  if (stored) check_same_model(*stored, setup, folder);
  if (stored) check_same_data(*stored, state.data, setup, data);
  if (stored && !stored->precision.loss_scaling)  // an earlier build kept a scale of no use
    engine.set_counters({.steps_applied = engine.counters().steps_applied});
  const std::optional<Numerics> saved = stored_numerics(state);
  const Numerics now = std::exchange(numerics, saved ? resumed(numerics, *saved, setup) : numerics);
  if (engine.rank() != 0) return state;
  fmt::print("resumed   at step {} from {}\n", state.step, folder);
  print_changes(stored, state.data, setup, data, engine);
  print_numerics(saved, now, setup);
  return state;
}

}  // namespace tessera::cli
