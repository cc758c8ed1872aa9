// A trainer that splits its own layers over processes: the bits of threads, by each other's memory, through
// shared buffers and by messages.
#include <gtest/gtest.h>

#include "tests/comm/mpi/harness.h"
#include "tests/engine/split_mlp.h"

namespace tessera::testing {
namespace {

void expect_bits_of_threads(const Mesh& mesh, int stage, const MpiOptions& options) {
  const MlpRun run{.mesh = mesh, .stage = stage};
  SCOPED_TRACE(to_string(run));
  MlpResult processes, threads;
  run_mpi(options, [&](Communicator world) { processes = train_mlp(world, run); });
  run_local(mesh.world(), {.waiting = Waiting::block}, [&](Communicator world) {
    MlpResult own = train_mlp(world, run);
    if (world.rank() == 0) threads = std::move(own);
  });
  EXPECT_LT(processes.losses.back(), processes.losses.front()) << "the run does not learn";
  expect_same_bits(processes, threads);
}

void expect_bits_of_threads(const MpiOptions& options) {
  const int ranks = mpi_processes();
  if (ranks != 2 && ranks != 4) GTEST_SKIP() << "the layers are not for " << ranks << " ranks";
  for (const int stage : {0, 3}) expect_bits_of_threads({.tensor = ranks}, stage, options);
  if (ranks == 4) expect_bits_of_threads({.shard = 2, .tensor = 2}, 3, options);
}

TEST(SplitLayersMpi, HaveTheBitsOfThreads) { expect_bits_of_threads(MpiOptions{}); }
TEST(SplitLayersMpi, SoItIsThroughSharedBuffers) { expect_bits_of_threads({.direct = false}); }
TEST(SplitLayersMpi, SoItIsOverMessages) { expect_bits_of_threads({.ranks_per_host = 1}); }

}  // namespace
}  // namespace tessera::testing
