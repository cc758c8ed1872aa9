// `tessera checkpoint export`: the ranks that saved a checkpoint load it and write its weights.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "src/cli/commands.h"
#include "src/cli/places.h"
#include "src/cli/processes.h"
#include "src/cli/setup.h"
#include "tessera/checkpoint.h"
#include "tessera/hugging_face.h"

namespace tessera::cli {

namespace {

// Rank 0's writing, or one rank's reading, may keep the others waiting for longer than a step may.
constexpr std::chrono::minutes kDiskDeadline{30};

void export_rank(Communicator world, const Setup& setup, const std::string& checkpoint,
                 const std::string& output, const KeptFiles& others) {
  Communicator disk = world.duplicate("export");
  disk.set_deadline(std::max<std::chrono::milliseconds>(kDiskDeadline, setup.options.engine.waits.deadline));
  const bool first = world.rank() == 0;
  Trainer trainer(std::move(world), setup.model, setup.options);
  const RunState state = load_checkpoint(checkpoint, disk, trainer.engine());
  if (const auto stored = stored_config(state.configuration)) check_same_model(*stored, setup, checkpoint);
  const ExportPlan plan = export_plan(setup, others);
  const auto files = export_safetensors(output, disk, trainer.engine(), plan.map, plan.options);
  if (!first) return;
  fmt::print("step {} of {}\n", state.step, checkpoint);
  for (const std::filesystem::path& file : files)
    fmt::print("wrote     {}  {} bytes\n", file.lexically_normal().string(),
               std::filesystem::file_size(file));
}

}  // namespace

int export_command(const RunArguments& arguments, const std::string& checkpoint, const std::string& output) {
  const Setup setup =
      make_setup(load_config(arguments.config, arguments.settings, arguments.ranks, checkpoint));
  const NamedFile named = {"the output", output};
  check_export("the output", output, setup.config);
  check_outside({named}, checkpoint);
  check_export_place("the output", output, setup.config);
  Config reads = setup.config;  // of what its run writes, nothing is written here
  reads.run.metrics = reads.run.tensorboard = reads.run.trace = reads.run.export_path = "";
  check_apart(reads, arguments.config, {named});
  const std::chrono::milliseconds deadline = setup.options.engine.waits.deadline;
  const KeptFiles others =
      files_to_hand_on(checkpoint, setup.config.model.weights, setup.config.model.adapter);
  const auto rank = [&](Communicator world) {
    export_rank(std::move(world), setup, checkpoint, output, others);
  };
  if (const Communicator world = world_of_processes(setup)) {
    check_same_run(world, setup.config);
    rank(world);
  } else {
    run_local(setup.world(), {.deadline = deadline}, rank);
  }
  return 0;
}

}  // namespace tessera::cli
