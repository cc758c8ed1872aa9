// What only emulated GPUs can show of ranks that exchange between them: work that never ends, and what is
// left behind.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tessera/device.h"
#include "tessera/id_vector.h"
#include "tests/emulated_cuda/gpu_rank.h"

namespace tessera::emulated_cuda {
namespace {

using contract::contains;
using std::chrono::milliseconds;

// With a stream, and a communicator bound to it.
struct Rank : GpuRank {
  explicit Rank(const Communicator& host)
      : GpuRank(host),
        lane(world.duplicate("gather")),
        stream(make_stream("gather")),
        arena(device->make_arena(4096)) {
    lane.bind(*stream);
  }
  void gather(const char* unit) {
    lane.all_gather(arena.base() + 256 * lane.rank(), arena.base(), 256, {.unit = unit});
  }
  cudaStream_t native() const { return static_cast<cudaStream_t>(stream->native()); }

  Communicator lane;
  std::unique_ptr<Stream> stream;
  Arena arena;
};

std::vector<std::string> messages_of(int ranks, const std::function<void(Communicator)>& rank_main) {
  IdVector<std::string> messages;
  EXPECT_THROW(run_local(ranks, {}, rank_main, &messages), Error);
  EXPECT_EQ(nccl_communicators(), 0) << "some were neither destroyed nor aborted";
  return messages;
}

TEST(EmulatedNccl, LeavesNothingBehind) {
  run_local(2, {}, [](Communicator host) {
    Rank rank(host);
    EXPECT_EQ(rank.lane.rank(), host.rank());
    rank.gather("block.0");
    rank.stream->synchronize();
    host.barrier();
    EXPECT_EQ(nccl_communicators(), 2 * 2) << "each rank's lane, and what it was split from";
    host.barrier();
  });
  EXPECT_EQ(nccl_communicators(), 0);
}

TEST(EmulatedNccl, WorkThatDoesNotEndOnTheGpuIsNamedAtTheDeadline) {
  const auto start = std::chrono::steady_clock::now();
  const auto messages = messages_of(2, [](Communicator host) {
    Rank rank(host);
    rank.gather("block.0");
    rank.stream->synchronize();
    hold_behind_next_mark(rank.native());
    rank.gather("block.1");
    rank.lane.set_deadline(milliseconds(300));
    rank.stream->synchronize();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10'000));
  int found = 0;
  for (int rank : {0, 1}) {
    const std::string& text = messages[rank];
    EXPECT_TRUE(contains(text,
                         "all_gather #2 of unit 'block.1' on 'gather': the GPUs have not completed it "
                         "within 300 ms"))
        << text;
    found += contains(text, "reported") ? 0 : 1;
  }
  EXPECT_GE(found, 1) << "no rank found it by itself";
}

TEST(EmulatedNccl, WorkThatWaitsForItsInputsIsNotLate) {
  run_local(2, {}, [](Communicator host) {
    Rank rank(host);
    hold(rank.native());  // what comes before the call has not ended
    rank.gather("block.0");
    rank.lane.set_deadline(milliseconds(50));
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_FALSE(rank.device->failure().failed()) << rank.device->failure().message();
    release(rank.native());
    rank.stream->synchronize();
    EXPECT_FALSE(rank.device->failure().failed()) << rank.device->failure().message();
  });
}

TEST(EmulatedNccl, AWaitForTheGpuEndsWhenAPeerFails) {
  const auto start = std::chrono::steady_clock::now();
  const auto messages = messages_of(3, [](Communicator host) {
    Rank rank(host);
    rank.gather("block.0");
    rank.stream->synchronize();
    if (host.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      throw Error("token 70000");
    }
    hold(rank.native());  // as where the peer's part is missing
    rank.stream->synchronize();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10'000));
  for (int rank : {0, 2}) {
    const std::string& text = messages[rank];
    EXPECT_TRUE(contains(text, "rank 1 failed: token 70000")) << text;
  }
}

TEST(EmulatedNccl, AnErrorThatNcclReportsEndsAWaitForTheGpu) {
  const auto start = std::chrono::steady_clock::now();
  const auto messages = messages_of(2, [](Communicator host) {
    Rank rank(host);
    rank.gather("block.0");
    rank.stream->synchronize();
    hold_behind_next_mark(rank.native());
    rank.gather("block.1");
    host.barrier();
    if (host.rank() == 1) lose_network(1);
    rank.stream->synchronize();
  });
  lose_network(-1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10'000));
  const std::string error =
      "all_gather #2 of unit 'block.1' on 'gather': NCCL failed: remote error (the network is down)";
  EXPECT_TRUE(contains(messages[1], "rank 1: " + error)) << messages[1];
  EXPECT_TRUE(contains(messages[0], "rank 1 failed: " + error)) << messages[0];
}

TEST(EmulatedNccl, ACallThatNoPeerJoinsNamesRankUnitOperationAndNumber) {
  const auto messages = messages_of(2, [](Communicator host) {
    Rank rank(host);
    rank.gather("block.0");
    rank.stream->synchronize();
    rank.lane.set_deadline(milliseconds(300));
    if (host.rank() == 0) rank.gather("block.1");
    while (!rank.device->failure().failed()) std::this_thread::sleep_for(milliseconds(1));
    for (int attempt = 0; attempt < 3; ++attempt)  // and it stays failed
      EXPECT_THROW(rank.gather("block.2"), CommunicationError);
    rank.device->failure().rethrow();
  });
  for (const std::string& text : messages)
    EXPECT_TRUE(contains(text,
                         "all_gather #2 of unit 'block.1' on 'gather': no answer from rank 1 within 300 ms "
                         "(rank 1 is at #1, all_gather of unit 'block.0')"))
        << text;
}

// A thread that loads a kernel waits for the GPU, and lets nobody else into the driver: neither who hears of
// the failure nor who ends the work that the GPU waits with may have to ask there.
TEST(EmulatedNccl, APeersFailureEndsWorkWhileAKernelIsLoaded) {
  const auto start = std::chrono::steady_clock::now();
  const auto messages = messages_of(2, [](Communicator host) {
    Rank rank(host);
    const auto compute = rank.make_stream("compute");
    const auto message = [&] {
      if (host.rank() == 0)
        rank.lane.send(rank.arena.base(), 256, 1);
      else
        rank.lane.recv(rank.arena.base(), 256, 0);
    };
    message();
    rank.stream->synchronize();
    if (host.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      throw Error("token 70000");
    }
    message();  // nobody takes it
    static const char kernel = 0;
    load(&kernel, static_cast<cudaStream_t>(compute->native()));
    rank.stream->synchronize();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10'000));
  EXPECT_TRUE(contains(messages[0], "rank 1 failed: token 70000")) << messages[0];
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// NCCL's abort waits for all that its GPU does: for the other lane's kernel, too.
TEST(EmulatedNccl, LanesThatBothHaveWorkInFlightEndTogetherWhenAPeerFails) {
  const std::size_t misuses = nccl_memory().misuses.size();
  const auto start = std::chrono::steady_clock::now();
  const auto messages = messages_of(3, [](Communicator host) {
    Rank rank(host);
    const auto other_stream = rank.make_stream("reduce");
    Communicator other = rank.world.duplicate("reduce");
    other.bind(*other_stream);
    rank.gather("block.0");
    rank.stream->synchronize();
    other.all_gather(rank.arena.base() + 256 * host.rank(), rank.arena.base(), 256, {.unit = "block.0"});
    other_stream->synchronize();
    if (host.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      throw Error("token 70000");
    }
    hold(rank.native());
    hold(static_cast<cudaStream_t>(other_stream->native()));
    rank.gather("block.1");
    rank.stream->synchronize();
  });
  EXPECT_LT(seconds_since(start), 3);
  for (int rank : {0, 2}) {
    const std::string& text = messages[rank];
    EXPECT_TRUE(contains(text, "rank 1 failed: token 70000")) << text;
  }
  EXPECT_EQ(nccl_memory().misuses.size(), misuses) << nccl_memory().misuses.back();
}

// As an engine says of its ranks: rank 0 waits for 1, which waits for 2.
TEST(EmulatedNccl, WhoWaitsForPeersItselfIsNotBlamed) {
  const auto messages = messages_of(3, [](Communicator host) {
    GpuRank rank(host);
    const int me = host.rank();
    Communicator first = rank.world.subgroup(me == 2 ? std::vector{2} : std::vector{0, 1}, "first");
    Communicator second = rank.world.subgroup(me == 0 ? std::vector{0} : std::vector{1, 2}, "second");
    for (Communicator* group : {&first, &second}) group->set_deadline(std::chrono::milliseconds(600));
    rank.world.barrier();
    if (me == 1) second.set_deadline(std::chrono::seconds(20));
    rank.world.set_waiting(me != 2);
    if (me == 0) first.barrier();
    if (me == 1) second.barrier();
    if (me == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    rank.world.barrier();
  });
  EXPECT_TRUE(contains(messages[0], "which waits for peers itself; rank 2")) << messages[0];
}

TEST(EmulatedNccl, ARankGivesItsCommunicatorsBackWithoutItsPeers) {
  const std::size_t misuses = nccl_memory().misuses.size();
  run_local(2, {}, [](Communicator host) {
    std::optional<Rank> rank(host);
    rank->gather("block.0");
    rank->stream->synchronize();
    host.barrier();
    const auto start = std::chrono::steady_clock::now();
    if (host.rank() == 1) rank.reset();
    EXPECT_LT(seconds_since(start), 2);
    host.barrier();
  });
  EXPECT_EQ(nccl_communicators(), 0);
  EXPECT_EQ(nccl_memory().misuses.size(), misuses) << nccl_memory().misuses.back();
}

// One whose calls have ended goes while another's have not: NCCL would wait for these.
TEST(EmulatedNccl, ALaneGoesBesideOneThatIsBusy) {
  const std::size_t misuses = nccl_memory().misuses.size();
  run_local(2, {}, [](Communicator host) {
    Rank rank(host);
    {
      const auto stream = rank.make_stream("reduce");
      Communicator other = rank.world.duplicate("reduce");
      other.bind(*stream);
      other.all_gather(rank.arena.base() + 256 * host.rank(), rank.arena.base(), 256);
      stream->synchronize();
      hold_behind_next_mark(rank.native());
      rank.gather("block.0");
      host.barrier();
    }
    EXPECT_FALSE(rank.device->failure().failed()) << rank.device->failure().message();
    release(rank.native());
    rank.gather("block.1");
    rank.stream->synchronize();
    host.barrier();
    EXPECT_EQ(nccl_communicators(), 2 * 3) << "it is given back with the other";
    host.barrier();
  });
  EXPECT_EQ(nccl_communicators(), 0);
  EXPECT_EQ(nccl_memory().misuses.size(), misuses) << nccl_memory().misuses.back();
}

}  // namespace
}  // namespace tessera::emulated_cuda
