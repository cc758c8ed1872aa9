#include "src/cli/processes.h"

#include <fmt/format.h>

namespace tessera::cli {
namespace {

void check_count(const Setup& setup, int processes) {
  if (processes == setup.world()) return;
  throw UsageError(fmt::format("the mesh has {} ranks, but {} processes were started: each is one rank",
                               setup.world(), processes));
}

Communicator control_world(const Setup& setup) {
  // The connections are for what is small; only GPUs have NCCL for the rest.
  if (setup.options.engine.device != DeviceType::cuda)
    throw UsageError(
        "run.device is \"cpu\", and RANK and WORLD_SIZE say that this process is one rank of several: start "
        "ranks on the CPU by mpirun, or unset these two for ranks that are threads");
  ControlOptions options = control_options_from_environment();
  check_count(setup, options.world);
  options.deadline = setup.options.engine.deadline;
  return make_control_world(options);
}

}  // namespace

bool ranks_are_processes() { return launched_by_mpi() || launched_by_variables(); }

Communicator world_of_processes(const Setup& setup) {
  if (!ranks_are_processes()) return {};
  if (!launched_by_mpi()) return control_world(setup);
  Communicator world = make_mpi_world({.deadline = setup.options.engine.deadline});
  check_count(setup, world.world());
  return world;
}

}  // namespace tessera::cli
