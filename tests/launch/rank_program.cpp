// A rank of the tests of `tessera launch`: meets its world by launch(), and prints what it finds.
//   rank_program sum        rank 0 prints the sum of all ranks' numbers, each plus one
//   rank_program die R      rank R kills itself; the others wait for it until they are told
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "tessera/launch.h"

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int dies = argc > 2 ? std::atoi(argv[2]) : -1;
  try {
    tessera::launch({.deadline = std::chrono::seconds(20), .note = [](const std::string&) {}},
                    [&](tessera::Communicator world) {
                      float sum = static_cast<float>(world.rank() + 1);
                      world.all_reduce(&sum, 1);
                      if (world.rank() == 0) std::printf("sum %g of %d\n", double{sum}, world.world());
                      if (what != "die") return;
                      std::fflush(stdout);
                      if (world.rank() == dies) std::raise(SIGKILL);
                      world.barrier();
                    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer says: %s\n", error.what());
    return 1;
  }
  return 0;
}
