// How communicators between GPUs come to be and go: what is split from what, and memory that is registered
// with them.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <thread>

#include "src/comm/backend.h"
#include "src/comm/nccl/library.h"
#include "tessera/device.h"
#include "tests/emulated_cuda/gpu_rank.h"

namespace tessera::emulated_cuda {
namespace {

using contract::contains;

// Where rank r of the group puts its world rank, in bytes.
std::vector<int> gathered(GpuRank& rank, Communicator& group, Stream& stream) {
  const Arena arena = rank.device->make_arena(group.world());
  std::vector<std::byte> own{static_cast<std::byte>(group.global_rank())};
  rank.device->copy(stream, arena.base() + group.rank(), own.data(), 1);
  group.all_gather(arena.base() + group.rank(), arena.base(), 1);
  std::vector<std::byte> all(static_cast<std::size_t>(group.world()));
  rank.device->copy(stream, all.data(), arena.base(), group.world());
  stream.synchronize();
  std::vector<int> ranks;
  for (const std::byte one : all) ranks.push_back(static_cast<int>(one));
  return ranks;
}

TEST(NcclSetUp, SplitsCommunicatorsOfTheSameRanksFromOne) {
  const NcclSetUp before = nccl_set_up();
  run_local(4, {}, [](Communicator host) {
    GpuRank rank(host);
    const std::vector<int> pair = host.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3};
    const std::vector<std::vector<int>> groups = {{0, 1, 2, 3}, {0, 1, 2, 3}, pair, {pair[1], pair[0]}};
    for (const std::vector<int>& members : groups) {
      const auto stream = rank.make_stream("lane");
      Communicator group = rank.world.subgroup(members, "lane");
      group.bind(*stream);
      EXPECT_EQ(gathered(rank, group, *stream), members);
    }
  });
  EXPECT_EQ(nccl_set_up().unique_ids - before.unique_ids, 1 + 2) << "of all ranks, and of each pair";
  EXPECT_EQ(nccl_set_up().splits - before.splits, 4 * 4) << "each rank takes part in each of its own";
  EXPECT_EQ(nccl_communicators(), 0);
}

int threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// The calling thread issues to all of them, and one thread a rank watches them.
TEST(NcclSetUp, ARankHasOneThreadForAllItsCommunicators) {
  constexpr int kGroups = 6;
  run_local(2, {}, [](Communicator host) {
    GpuRank rank(host);
    std::vector<std::unique_ptr<Stream>> streams;  // an emulated one has a thread itself
    std::vector<Communicator> groups;
    for (int i = 0; i < kGroups; ++i) {
      streams.push_back(rank.make_stream("lane"));
      groups.push_back(rank.world.duplicate("lane"));
    }
    const Arena arena = rank.device->make_arena(512);
    const auto count = [&] {
      host.barrier();
      const int threads = threads_of_process();
      host.barrier();
      return threads;
    };
    const auto use = [&](std::size_t i) {
      groups[i].bind(*streams[i]);
      groups[i].all_gather(arena.base() + 256 * host.rank(), arena.base(), 256);
      streams[i]->synchronize();
    };
    const int before = count();
    use(0);
    EXPECT_EQ(count() - before, 2) << "one for each rank";
    for (std::size_t i = 1; i < kGroups; ++i) use(i);
    EXPECT_EQ(count() - before, 2);
  });
}

// In a step a rank's host may wait for what its peer does only behind the message.
TEST(NcclSetUp, AConnectedPairSendsAheadOfTheReceiver) {
  std::atomic<bool> sent{false};
  run_local(2, {}, [&](Communicator host) {
    GpuRank rank(host);
    const auto stream = rank.make_stream("messages");
    Communicator pair = rank.world.duplicate("messages");
    pair.bind(*stream);
    pair.backend()->connect_pair();
    stream->synchronize();
    const Arena arena = rank.device->make_arena(8);
    if (host.rank() == 0) {
      pair.send(arena.base(), 8, 1);
      sent.store(true);
    } else {
      while (!sent.load() && !rank.device->failure().failed()) std::this_thread::yield();
      pair.recv(arena.base(), 8, 0);
    }
    stream->synchronize();
    EXPECT_EQ(pair.bytes_received(), 8 * host.rank());
  });
}

TEST(NcclSetUp, ANativeReductionIsOneCallOfNccls) {
  const int before = nccl_set_up().sums;
  run_local(2, {}, [](Communicator host) {
    GpuRank rank(host);
    const auto stream = rank.make_stream("reduce");
    Communicator reduce = rank.world.duplicate("reduce");
    reduce.bind(*stream);
    const Arena arena = rank.device->make_arena(4096);
    auto* const full = reinterpret_cast<float*>(arena.base());
    for (const Reduction reduction : {Reduction::exact, Reduction::native})
      reduce.reduce_scatter(
          {.full = full, .shard = full + 512 * reduce.rank(), .shard_numel = 512, .reduction = reduction});
    stream->synchronize();
  });
  EXPECT_EQ(nccl_set_up().sums - before, 2) << "one by each rank";
}

TEST(NcclSetUp, AnErrorInASplitEndsItOnAllRanks) {
  std::vector<std::string> messages;
  EXPECT_THROW(run_local(
                   2, {},
                   [](Communicator host) {
                     GpuRank rank(host);
                     const auto first = rank.make_stream("lane"), second = rank.make_stream("lane");
                     Communicator gather = rank.world.duplicate("gather");
                     Communicator reduce = rank.world.duplicate("reduce");
                     gather.bind(*first);
                     host.barrier();
                     if (host.rank() == 1) lose_network(1);
                     reduce.bind(*second);
                   },
                   &messages),
               Error);
  lose_network(-1);
  EXPECT_TRUE(
      contains(messages[1], "rank 1, GPU 1: ncclCommSplit failed: remote error (the network is down)"))
      << messages[1];
  EXPECT_TRUE(contains(messages[0], "rank 1 failed")) << messages[0];
  EXPECT_EQ(nccl_communicators(), 0);
}

TEST(NcclSetUp, AnArenaIsRegisteredWithEveryCommunicatorUntilItGoes) {
  const std::size_t misuses = nccl_memory().misuses.size();
  run_local(2, {}, [](Communicator host) {
    GpuRank rank(host);
    const auto first = rank.make_stream("lane"), second = rank.make_stream("lane");
    Communicator gather = rank.world.duplicate("gather"), reduce = rank.world.duplicate("reduce");
    gather.bind(*first);
    reduce.bind(*second);
    Arena arena = rank.device->make_arena(4096, false, rank.world.arena_source());
    Arena other = rank.device->make_arena(4096);
    host.barrier();
    EXPECT_EQ(nccl_memory().arenas, 2 * 3) << "and the communicators' staging memory";
    host.barrier();
    const ArenaRegistration registration = rank.world.register_arena(arena);
    EXPECT_TRUE(registration.direct) << registration.reason;
    EXPECT_EQ(registration.reason + registration.note, "");
    host.barrier();
    EXPECT_EQ(nccl_memory().registered, 2 * 2 * 2) << "ranks, communicators, arena and staging memory";
    gather.all_gather(arena.base() + host.rank(), arena.base(), 1);
    first->synchronize();
    host.barrier();
    arena = {};  // before the communicators
    host.barrier();
    EXPECT_EQ(nccl_memory().registered, 0);
    EXPECT_EQ(nccl_memory().arenas, 2 * 2);
    host.barrier();
    arena = rank.device->make_arena(4096, false, rank.world.arena_source());
    EXPECT_TRUE(rank.world.register_arena(arena).direct) << "another";
    {
      Arena third = rank.device->make_arena(4096, false, rank.world.arena_source());
      EXPECT_TRUE(rank.world.register_arena(third).direct);
    }
    gather.all_gather(arena.base() + host.rank(), arena.base(), 1);  // the second one still is
    first->synchronize();
    host.barrier();
    EXPECT_EQ(nccl_memory().registered, 2 * 2 * 2);
    host.barrier();
    gather = {}, reduce = {};  // before the arena
    host.barrier();
    EXPECT_EQ(nccl_memory().registered, 0);
  });
  EXPECT_EQ(nccl_memory().misuses.size(), misuses) << nccl_memory().misuses.back();
  EXPECT_EQ(nccl_memory().arenas, 0);
}

// The emulation tells what NCCL would take with undefined results.
TEST(NcclSetUp, CallsAreGivenRegisteredMemoryOnly) {
  std::vector<std::string> messages;
  EXPECT_THROW(run_local(
                   2, {},
                   [](Communicator host) {
                     GpuRank rank(host);
                     const auto stream = rank.make_stream("lane");
                     Communicator lane = rank.world.duplicate("gather");
                     lane.bind(*stream);
                     Arena arena = rank.device->make_arena(64, false, rank.world.arena_source());
                     const Arena other = rank.device->make_arena(64);
                     EXPECT_TRUE(rank.world.register_arena(arena).direct);
                     lane.all_gather(other.base() + host.rank(), other.base(), 1);
                   },
                   &messages),
               Error);
  EXPECT_TRUE(contains(messages[0] + messages[1], "with memory that is not registered")) << messages[0];
}

TEST(NcclSetUp, WhatOneRankCannotRegisterNoneDoes) {
  const std::size_t misuses = nccl_memory().misuses.size();
  refuse_nccl_registration(1);
  run_local(2, {}, [](Communicator host) {
    GpuRank rank(host);
    Arena arena = rank.device->make_arena(64, false, rank.world.arena_source());
    EXPECT_EQ(rank.world.register_arena(arena).reason, "rank 0: no communicator is bound to a GPU");
    const auto stream = rank.make_stream("lane");
    Communicator lane = rank.world.duplicate("gather");
    lane.bind(*stream);
    const ArenaRegistration registration = rank.world.register_arena(arena);
    EXPECT_FALSE(registration.direct);
    EXPECT_TRUE(contains(registration.reason, "rank 1: ncclCommRegister failed: unhandled system error"))
        << registration.reason;
    host.barrier();
    EXPECT_EQ(nccl_memory().registered, 0);
    lane.all_gather(arena.base() + host.rank(), arena.base(), 1);
    stream->synchronize();
    host.barrier();
  });
  refuse_nccl_registration(-1);
  EXPECT_EQ(nccl_memory().misuses.size(), misuses) << nccl_memory().misuses.back();
}

TEST(NcclSetUp, MemoryThatNcclRefusesIsTakenFromTheRuntime) {
  const std::size_t misuses = nccl_memory().misuses.size();
  refuse_nccl_memory(0);
  run_local(2, {}, [](Communicator host) {
    GpuRank rank(host);
    const auto stream = rank.make_stream("lane");
    Communicator lane = rank.world.duplicate("gather");
    lane.bind(*stream);
    Arena arena = rank.device->make_arena(64, false, rank.world.arena_source());
    const ArenaRegistration registration = rank.world.register_arena(arena);
    EXPECT_TRUE(registration.direct) << registration.reason;
    EXPECT_EQ(registration.note,
              "rank 0: ncclMemAlloc of 64 bytes failed: unhandled cuda error; cudaMalloc took its place");
    host.barrier();
    EXPECT_EQ(nccl_memory().arenas, 2) << "rank 1's, and its staging memory";
    host.barrier();
  });
  refuse_nccl_memory(-1);
  EXPECT_EQ(nccl_memory().misuses.size(), misuses) << nccl_memory().misuses.back();
}

TEST(NcclSetUp, AnNcclThatIsTooOldIsRefused) {
  const auto refusal = [](int version) {
    set_nccl_version(version);
    const std::string unusable = read_nccl_library().unusable;
    set_nccl_version(22809);
    return unusable;
  };
  EXPECT_EQ(refusal(22601),
            "libnccl.so.2 is version 2.26.1; collectives between GPUs need 2.26.2 or later: install it or "
            "name its folder in LD_LIBRARY_PATH");
  EXPECT_EQ(refusal(22602), "");
  set_nccl_version(22005);
  EXPECT_THROW(make_nccl_world(make_local_world(1)[0]), EnvironmentError);
  set_nccl_version(22809);
}

TEST(NcclSetUp, AnEnvironmentInWhichGpusCouldDeadlockIsRefused) {
  constexpr const char* kVariable = "NCCL_LAUNCH_ORDER_IMPLICIT";
  unsetenv(kVariable);
  comm::ask_for_launch_order();
  EXPECT_STREQ(std::getenv(kVariable), "1");
  for (const char* value : {"0", "", "on"}) {
    setenv(kVariable, value, 1);
    EXPECT_THROW(comm::ask_for_launch_order(), EnvironmentError) << value;
    EXPECT_STREQ(std::getenv(kVariable), value) << "it is the user's";
  }
  unsetenv(kVariable);
}

}  // namespace
}  // namespace tessera::emulated_cuda
