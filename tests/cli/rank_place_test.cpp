// Which GPU a rank takes, by what its process sees; no GPU is needed.
#include "src/cli/rank_place.h"

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera::cli {
namespace {

CudaMachine seeing(const std::vector<int>& places) {
  CudaMachine machine;
  for (const int place : places)
    machine.gpus.push_back({.name = "GPU", .bus_id = "0000:0" + std::to_string(place) + ":00.0"});
  return machine;
}

// The GPUs that ranks take, each of which sees what `sees` gives it.
std::vector<RankGpu> taken(int ranks, const std::function<std::vector<int>(int)>& sees, bool share = false) {
  IdVector<RankGpu> all(ranks);
  run_local(ranks, {}, [&](Communicator world) {
    all[world.rank()] = gpu_of_rank(world, seeing(sees(world.rank())), share);
  });
  return all;
}

std::vector<int> ordinals(const IdVector<RankGpu>& all) {
  std::vector<int> ordinals;
  for (const RankGpu& gpu : all) ordinals.push_back(gpu.ordinal);
  return ordinals;
}

TEST(RankPlace, RanksTakeTheGpusOfTheirHostInTurn) {
  EXPECT_EQ(ordinals(taken(3, [](int) { return std::vector{0, 1, 2}; })), (std::vector{0, 1, 2}));
  EXPECT_EQ(ordinals(taken(2, [](int) { return std::vector{0, 1, 2}; })), (std::vector{0, 1}));
}

// As a launcher has it that gives each of its tasks a GPU.
TEST(RankPlace, RanksThatSeeTheirOwnGpuAloneTakeIt) {
  EXPECT_EQ(ordinals(taken(4, [](int rank) { return std::vector{rank}; })), (std::vector{0, 0, 0, 0}));
}

TEST(RankPlace, NoTwoRanksTakeOneGpuUnlessTheyMay) {
  using Sees = std::function<std::vector<int>(int)>;
  for (const Sees& sees : {Sees([](int) {
                             return std::vector{0, 1};
                           }),                                                    // too few
                           Sees([](int rank) { return std::vector{rank % 2}; }),  // the wrong ones
                           Sees([](int rank) {
                             return rank < 2 ? std::vector{0, 1} : std::vector{1, 0};
                           })})
    try {
      taken(3, sees);
      ADD_FAILURE() << "ranks share a GPU";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("the mesh has 3 ranks: this host has 3 of them"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("would share the GPU at 0000:0"));
    }
  const std::vector<RankGpu> shared = taken(
      3,
      [](int) {
        return std::vector{0, 1};
      },
      true);
  EXPECT_EQ(ordinals(shared), (std::vector{0, 1, 0}));
  EXPECT_TRUE(shared[0].first && shared[1].first && !shared[2].first);
}

}  // namespace
}  // namespace tessera::cli
