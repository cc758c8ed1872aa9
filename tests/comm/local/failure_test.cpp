// What can go wrong between threads beyond the contract: stuck ranks, and memory that is freed when a rank
// gives up.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tessera/communicator.h"
#include "tessera/device.h"
#include "tessera/id_vector.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(LocalFailure, AStuckRankIsLeftBehindAndNamed) {
  // Static: the stuck thread outlives the test body, as run_local warns.
  static std::atomic<bool> release{false}, ended{false};
  const auto start = Clock::now();
  std::vector<std::string> messages;
  try {
    run_local(
        3, {.deadline = milliseconds(3000)},
        [](Communicator ranks) {
          ranks.barrier({.unit = "step 3"});
          if (ranks.rank() == 1) {
            while (!release.load()) std::this_thread::sleep_for(milliseconds(1));
            ended = true;
            return;
          }
          ranks.barrier({.unit = "step 3"});
        },
        &messages);
    ADD_FAILURE() << "did not throw";
  } catch (const CommunicationError& error) {
    EXPECT_EQ(error.culprit(), 1);
    EXPECT_TRUE(contains(error.what(), "no answer from rank 1")) << error.what();
  }
  EXPECT_LT(Clock::now() - start, milliseconds(5900)) << "it took two deadlines";
  EXPECT_EQ(messages[1], "") << "it has not ended";
  EXPECT_TRUE(contains(messages[2], "rank 1")) << messages[2];
  release = true;
  while (!ended.load()) std::this_thread::sleep_for(milliseconds(1));
}

TEST(LocalFailure, ARankThatLetsGoOfItsCommunicatorsHasEnded) {
  const auto start = Clock::now();
  std::vector<Communicator> ranks = make_local_world(3);
  std::string text;
  std::thread waiting([&, own = std::move(ranks[0])]() mutable {
    try {
      own.barrier({.unit = "step 3"});
    } catch (const CommunicationError& error) {
      text = error.what();
      EXPECT_EQ(error.culprit(), 2);
    }
  });
  ranks[2] = {};
  waiting.join();
  EXPECT_TRUE(contains(text, "rank 0: barrier #1 of unit 'step 3' on 'world': rank 2 has ended")) << text;
  EXPECT_LT(Clock::now() - start, milliseconds(20'000));
}

TEST(LocalFailure, ARankThatKeepsASubgroupHasNotEnded) {
  std::vector<Communicator> ranks = make_local_world(2, {.deadline = milliseconds(300)});
  Communicator sub = ranks[1].subgroup({0, 1}, "sub");
  ranks[1] = {};
  std::string text;
  try {
    ranks[0].barrier();
  } catch (const CommunicationError& error) {
    text = error.what();
  }
  EXPECT_TRUE(contains(text, "no answer from rank 1")) << text;
}

TEST(LocalFailure, BuffersMayBeFreedAsSoonAsACallThrows) {
  // Ranks gather large buffers while another thread fails one of them at a random time; each frees its
  // buffers when its call throws. A peer that still read them would be seen by AddressSanitizer, or crash on
  // unmapped memory.
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    const int delay_us = static_cast<int>(random() % 3000);
    EXPECT_THROW(run_local(3, {},
                           [&](Communicator ranks) {
                             std::thread failer;
                             if (ranks.rank() == round % 3)
                               failer = std::thread([ranks, delay_us]() mutable {
                                 std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
                                 ranks.fail("at a random time");
                               });
                             try {
                               for (;;) {
                                 const Arena shard({.bytes = 1 << 19}), full({.bytes = 3 << 19});
                                 ranks.all_gather(shard.base(), full.base(), 1 << 19);
                                 ranks.reduce_scatter({.full = full.base(),
                                                       .shard = reinterpret_cast<float*>(shard.base()),
                                                       .shard_numel = 1 << 17});
                               }
                             } catch (const CommunicationError&) {
                               if (failer.joinable()) failer.join();
                               throw;
                             }
                           }),
                 CommunicationError);
  }
}

TEST(LocalFailure, AStreamThatFailsEndsThePeers) {
  // The whole way: a task throws on a lane, the device's flag is set, the world is told, the peer's lane
  // fails.
  std::vector<std::string> messages;
  EXPECT_THROW(run_local(
                   2, {},
                   [](Communicator ranks) {
                     const auto device = make_cpu_device({.rank = ranks.rank()});
                     ranks.attach(device->failure());
                     // Before the streams, to outlive them: a failed stream's last task may still be running.
                     Communicator lane = ranks.duplicate("gather");
                     const auto gather = device->make_stream({.name = "gather"});
                     const auto reduce = device->make_stream({.name = "reduce"});
                     if (ranks.rank() == 1)
                       reduce->run({.run = [](void*, std::uint64_t) { throw UsageError("not finite"); }});
                     gather->run({.run =
                                      [](void* context, std::uint64_t) {
                                        for (;;)
                                          static_cast<Communicator*>(context)->barrier({.unit = "block.1"});
                                      },
                                  .context = &lane});
                     gather->synchronize();
                   },
                   &messages),
               UsageError);
  EXPECT_TRUE(contains(messages[0], "rank 1 failed: not finite")) << messages[0];
  EXPECT_TRUE(contains(messages[1], "not finite")) << messages[1];
}

TEST(RunLocal, KeepsRanksOnTheirShareOfTheCores) {
  const std::vector<int> cores = allowed_cores();
  const int ranks = 2;
  IdVector<std::vector<int>> seen(ranks), of_threads(ranks);
  run_local(ranks, {.pin = true}, [&](Communicator world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    seen[rank] = allowed_cores();
    std::thread([&] { of_threads[rank] = allowed_cores(); }).join();
  });
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<int> share = share_of_cores(cores, rank, ranks);
    EXPECT_EQ(seen[rank], share.empty() ? cores : share);
    EXPECT_EQ(of_threads[rank], share.empty() ? cores : share);
  }
  EXPECT_EQ(allowed_cores(), cores) << "the caller has all its cores back";
  EXPECT_EQ(share_of_cores({0, 2, 4, 6, 8}, 0, 2), (std::vector{0, 2}));
  EXPECT_EQ(share_of_cores({0, 2, 4, 6, 8}, 1, 2), (std::vector{4, 6, 8}));
  EXPECT_EQ(share_of_cores({0, 2}, 0, 3), std::vector<int>{});
}

TEST(LocalFailure, ARankThatOnlySaysItFailedIsAnErrorToo) {
  EXPECT_THROW(run_local(2, {},
                         [](Communicator ranks) {
                           if (ranks.rank() == 1) ranks.fail("said so");
                         }),
               CommunicationError);
}

TEST(LocalFailure, ADestroyedStreamDoesNotWaitForAPeer) {
  const auto start = Clock::now();
  EXPECT_THROW(
      run_local(2, {},
                [](Communicator ranks) {
                  const auto device = make_cpu_device({.rank = ranks.rank()});
                  ranks.attach(device->failure());
                  auto gather = device->make_stream({.name = "gather"});
                  gather->run({.run = [](void* context,
                                         std::uint64_t) { static_cast<Communicator*>(context)->barrier(); },
                               .context = &ranks});
                  if (ranks.rank() == 0) gather->synchronize();
                  if (ranks.rank() == 1) throw UsageError("unwinds past its lane");
                }),
      Error);
  EXPECT_LT(Clock::now() - start, milliseconds(15'000));
}

}  // namespace
}  // namespace tessera
