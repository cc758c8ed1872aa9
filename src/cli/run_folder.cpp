#include "src/cli/run_folder.h"

#include <fmt/format.h>

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

}  // namespace tessera::cli
