// What only shared memory can show: barriers in time, delays, any way of waiting.
#include <gtest/gtest.h>

#include <atomic>

#include "tessera/communicator.h"
#include "tessera/id_vector.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

TEST(LocalOrder, NoRankLeavesABarrierBeforeAllHaveCome) {
  for (const Waiting waiting : {Waiting::automatic, Waiting::spin, Waiting::yield, Waiting::block})
    for (int world : {2, 5}) {
      std::atomic<int> arrived{0};
      run_local(world, {.waiting = waiting}, [&](Communicator ranks) {
        for (int round = 1; round <= 50; ++round) {
          arrived.fetch_add(1);
          ranks.barrier();
          EXPECT_GE(arrived.load(), round * world);
          ranks.barrier();
          EXPECT_LT(arrived.load(), (round + 1) * world);
        }
      });
    }
}

TEST(LocalOrder, AnInjectedDelayIsSleptInEveryCallAndInherited) {
  run_local(2, {}, [](Communicator ranks) {
    ranks.set_delay(milliseconds(10));
    Communicator lane = ranks.duplicate("gather");
    const auto start = Clock::now();
    for (int i = 0; i < 5; ++i) lane.barrier();
    EXPECT_GE(Clock::now() - start, milliseconds(50));
  });
}

TEST(LocalOrder, ManyRanksFinish) {
  run_local(64, {}, [](Communicator ranks) {
    const int me = ranks.rank();
    IdVector<int> all(64);
    for (int i = 0; i < 5; ++i) ranks.all_gather(&me, all.data(), 4);
    for (int rank = 0; rank < 64; ++rank) EXPECT_EQ(all[rank], rank);
  });
}

TEST(LocalOrder, AWorldWithoutThreadsOfItsOwnWorksInOneThreadEach) {
  std::vector<Communicator> world = make_local_world(1);
  float value = 3;
  world[0].all_reduce(&value, 1);
  EXPECT_EQ(value, 3);
  EXPECT_EQ(world[0].name(), "world");
  EXPECT_FALSE(Communicator());
  EXPECT_TRUE(world[0]);
}

}  // namespace
}  // namespace tessera
