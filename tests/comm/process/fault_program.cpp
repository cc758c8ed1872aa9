// fault_program HOW RANKS_PER_HOST: ranks (see ProcessOptions) that communicate as a trainer's do, until rank
// 1 throws, exits, vanishes, is killed or stalls. Every other rank ends with status 1 and says why.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "tessera/communicator.h"
#include "tessera/device.h"

namespace {

void misbehave(const std::string& how) {
  if (how == "throw") throw std::runtime_error("the disk is full");
  if (how == "exit") std::exit(0);
  if (how == "vanish") std::_Exit(3);
  if (how == "kill") raise(SIGKILL);
  if (how == "stall") std::this_thread::sleep_for(std::chrono::seconds(20));
}

// Few bytes go through shared buffers, many are read from peers' arenas where they are on one host.
void run(tessera::Communicator world, const std::string& how) {
  constexpr std::int64_t kFew = 400, kMany = 400'000;
  tessera::Arena arena({.bytes = world.world() * kMany, .shared = world.wants_shared_arena()});
  world.register_arena(arena);
  for (int round = 0; round < 2000; ++round) {
    if (round == 50 && world.rank() == 1) misbehave(how);
    for (const std::int64_t bytes : {kFew, kMany})
      world.all_gather(arena.base() + world.rank() * bytes, arena.base(), bytes, {.unit = "block.1"});
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string how = count > 1 ? arguments[1] : "";
  tessera::ControlOptions control = tessera::control_options_from_environment();
  control.deadline = std::chrono::seconds(2);
  tessera::Communicator world = tessera::make_process_world(
      tessera::make_control_world(control), {.ranks_per_host = count > 2 ? std::atoi(arguments[2]) : 0});
  try {
    run(world, how);
  } catch (const std::exception& error) {
    world.fail(error.what());
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
  return 0;
}
