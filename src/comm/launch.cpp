#include "tessera/launch.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>

namespace tessera {
namespace {

void note(const LaunchOptions& options, const std::string& line) {
  if (options.note) return options.note(line);
  std::fprintf(stderr, "%s\n", line.c_str());
}

std::string ranks_text(int ranks) { return ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks); }

// This process's rank.
void run_process(Communicator world, const std::function<void(Communicator)>& rank_main) {
  try {
    rank_main(world);
  } catch (const std::exception& error) {
    world.fail(error.what());
    throw;
  } catch (...) {
    world.fail("an exception that is not a std::exception");
    throw;
  }
}

}  // namespace

Launcher find_launcher() {
  check_launchers();
  if (launched_by_mpi()) return Launcher::mpi;
  return launched_by_variables() ? Launcher::variables : Launcher::threads;
}

Communicator make_world_of_variables(std::chrono::milliseconds deadline, std::string* how) {
  ControlOptions options = control_options_from_environment();
  options.deadline = deadline;
  Communicator control = make_control_world(options);
  const bool one_host = place_on_host(control).ranks == control.world();
  if (!one_host && !process_between_hosts()) {
    if (how != nullptr)
      *how = "all that they exchange passes through rank 0, as this build has no UCX for several hosts";
    return control;
  }
  if (how != nullptr)
    *how = one_host ? "they share memory" : "they share memory on a host, and UCX joins hosts";
  return make_process_world(control, {.address = options.address});
}

void launch(const LaunchOptions& options, const std::function<void(Communicator)>& rank_main) {
  if (!rank_main) throw UsageError("launch: rank_main is empty; give the function that every rank runs");
  if (options.threads < 1)
    throw UsageError(fmt::format("launch: threads is {}; it must be 1 or more", options.threads));
  switch (find_launcher()) {
    case Launcher::threads:
      note(options, options.threads == 1
                        ? "1 rank on a thread of this process"
                        : fmt::format("{} on threads of this process", ranks_text(options.threads)));
      run_local(options.threads, {.deadline = options.deadline}, rank_main);
      return;
    case Launcher::mpi: {
      const Communicator world = make_mpi_world({.deadline = options.deadline});
      if (world.rank() == 0)
        note(options, fmt::format("{} as processes of MPI's launcher", ranks_text(world.world())));
      return run_process(world, rank_main);
    }
    case Launcher::variables: {
      std::string how;
      const Communicator world = make_world_of_variables(options.deadline, &how);
      if (world.rank() == 0)
        note(options,
             fmt::format("{} as processes, by RANK and WORLD_SIZE: {}", ranks_text(world.world()), how));
      return run_process(world, rank_main);
    }
  }
}

}  // namespace tessera
