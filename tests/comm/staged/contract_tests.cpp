// Tests of worlds of processes, see contract.h.
#include "tests/comm/staged/contract.h"

#include <random>
#include <span>
#include <stdexcept>

#include "tessera/device.h"
#include "tessera/machine.h"

namespace tessera::contract {
namespace {

void run_staged(const StagedSettings& settings, const std::function<void(Communicator)>& rank_main,
                std::vector<std::string>* messages = nullptr) {
  staged_worlds().run(settings, rank_main, messages);
}

}  // namespace

// More than the staging buffers hold at a time, and not a multiple of them.
TEST_P(CommunicatorContract, LargeBuffersGoInParts) {
  run([&](Communicator ranks) {
    const int n = ranks.world(), me = ranks.rank();
    const std::int64_t numel = 300'007;
    std::vector<float> full, shard(static_cast<std::size_t>(numel)), expected;
    for (std::int64_t i = 0; i < n * numel; ++i) full.push_back(value_of(me, 1, i));
    ranks.reduce_scatter({.full = full.data(), .shard = shard.data(), .shard_numel = numel});
    for (std::int64_t i = 0; i < n * numel; ++i) {
      float sum = value_of(0, 1, i);
      for (int peer = 1; peer < n; ++peer) sum += value_of(peer, 1, i);
      expected.push_back(sum);
    }
    ranks.all_reduce(full.data(), n * numel);
    EXPECT_TRUE(raw(full) == raw(expected));
    std::vector<float> gathered(full.size());
    ranks.all_gather(shard.data(), gathered.data(), numel * 4);
    EXPECT_TRUE(raw(gathered) == raw(expected));
    ranks.all_to_all(full.data(), gathered.data(), numel * 4);
    for (int peer = 0; peer < n; ++peer)
      EXPECT_TRUE(std::equal(full.begin() + me * numel, full.begin() + (me + 1) * numel,
                             gathered.begin() + peer * numel));
    if (n == 1) return;
    const auto message = bytes_of(0, 9, 1'000'003);
    std::vector<std::uint8_t> received(message.size());
    if (me == 0) ranks.send(message.data(), 1'000'003, n - 1);
    if (me == n - 1) ranks.recv(received.data(), 1'000'003, 0);
    if (me == n - 1) {
      EXPECT_TRUE(received == message);
    }
  });
}

// ---- arenas ----

namespace {

// Buffers of a rank, one behind the other, in an arena or not.
class Buffers {
 public:
  Buffers(Communicator& ranks, bool registered)
      : arena_({.bytes = kBytes, .stagger_bytes = 256 * ranks.rank(), .shared = registered}) {
    if (registered) registration_ = ranks.register_arena(arena_);
  }

  template <class Element>
  std::span<Element> make(std::int64_t numel) {
    auto* const begin = reinterpret_cast<Element*>(arena_.base() + used_);
    used_ += (numel * static_cast<std::int64_t>(sizeof(Element)) + 63) / 64 * 64;
    if (used_ > kBytes) throw std::length_error("the test's arena is too small");
    return {begin, static_cast<std::size_t>(numel)};
  }
  const ArenaRegistration& registration() const { return registration_; }

 private:
  static constexpr std::int64_t kBytes = 32 << 20;
  Arena arena_;
  ArenaRegistration registration_;
  std::int64_t used_ = 0;
};

// All that every collective makes of `numel` elements a rank, in bits.
std::vector<std::uint64_t> bits_of_everything(Communicator& ranks, Buffers& buffers, std::int64_t numel) {
  const int n = ranks.world(), me = ranks.rank();
  std::vector<std::uint64_t> bits;
  const auto keep = [&](const auto& values) {
    for (const auto value : values) bits.push_back(std::bit_cast<std::uint64_t>(static_cast<double>(value)));
  };
  const auto fill = [&](auto values, int salt) {
    std::int64_t i = 0;
    for (auto& value : values) value = value_of(me, salt, i++);
    return values;
  };
  auto full = fill(buffers.make<float>(n * numel), 1);
  auto shard = fill(buffers.make<float>(numel), 2);
  ranks.reduce_scatter(
      {.full = full.data(), .shard = shard.data(), .shard_numel = numel, .accumulate = true});
  keep(shard);
  ranks.all_gather(shard.data(), full.data(), numel * 4);
  keep(full);
  const auto own = full.subspan(static_cast<std::size_t>(me * numel), static_cast<std::size_t>(numel));
  fill(full, 3);
  ranks.reduce_scatter({.full = full.data(), .shard = own.data(), .shard_numel = numel});
  keep(full);
  ranks.all_gather(own.data(), full.data(), numel * 4);
  keep(full);
  auto half = buffers.make<std::uint16_t>(n * numel);
  for (std::int64_t i = 0; i < n * numel; ++i)
    half[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(stored(DType::bf16, me, 4, i));
  ranks.reduce_scatter(
      {.full = half.data(), .wire = DType::bf16, .shard = shard.data(), .shard_numel = numel});
  keep(shard);
  bits.push_back(static_cast<std::uint64_t>(ranks.bytes_received()));
  auto sums = fill(buffers.make<double>(numel), 5);
  ranks.all_reduce(sums.data(), numel);
  keep(sums);
  ranks.all_reduce(shard.data(), numel);
  keep(shard);
  auto blocks = fill(buffers.make<float>(n * numel), 6);
  ranks.all_to_all(blocks.data(), full.data(), numel * 4);
  keep(full);
  ranks.broadcast(blocks.data(), numel * 4, n - 1);
  keep(blocks);
  return bits;
}

class OfProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!staged_worlds().run) GTEST_SKIP() << "ranks are threads here";
  }
};

class Arenas : public OfProcesses {
 protected:
  // On every process, in a world of its own.
  static std::vector<std::uint64_t> run(const StagedSettings& options, std::int64_t numel,
                                        const std::function<bool(int rank)>& registered) {
    std::vector<std::uint64_t> bits;
    run_staged(options, [&](Communicator world) {
      Communicator setup = world.duplicate("set-up");
      Buffers in_arena(setup, true), elsewhere(setup, false);
      EXPECT_EQ(in_arena.registration().direct, options.direct && options.ranks_per_host == 0)
          << in_arena.registration().reason;
      bits = bits_of_everything(world, registered(world.rank()) ? in_arena : elsewhere, numel);
    });
    return bits;
  }
};

TEST_F(Arenas, GiveTheBitsAndTheByteCountsOfThreadsWhereverTheBuffersLie) {
  for (const std::int64_t numel : {7, 1000, 4099, 100'003}) {
    std::vector<std::uint64_t> expected;
    run_local(staged_worlds().ranks, {}, [&](Communicator ranks) {
      Buffers buffers(ranks, false);
      auto bits = bits_of_everything(ranks, buffers, numel);
      if (ranks.rank() == staged_worlds().rank) expected = std::move(bits);
    });
    const auto all = [](int) { return true; };
    EXPECT_TRUE(run({}, numel, all) == expected) << numel;
    EXPECT_TRUE(run({.direct = false}, numel, all) == expected) << numel;
    EXPECT_TRUE(run({.ranks_per_host = 1}, numel, all) == expected) << numel;
    EXPECT_TRUE(run({}, numel, [](int rank) { return rank != 0; }) == expected) << numel;
  }
}

TEST_F(Arenas, SayWhyRanksDoNotReadThem) {
  const auto reason = [](const StagedSettings& options, bool shared) {
    ArenaRegistration registration;
    run_staged(options, [&](Communicator world) {
      Arena arena({.bytes = 4096, .shared = shared || world.rank() != 1});
      registration = world.register_arena(arena);
    });
    EXPECT_FALSE(registration.direct);
    return registration.reason;
  };
  EXPECT_EQ(reason({.direct = false}, true), "rank 0: " + staged_worlds().settings + "::direct is false");
  EXPECT_EQ(reason({}, false), "rank 0: rank 1 has no memory that other processes can map");
  EXPECT_EQ(reason({.ranks_per_host = 1}, true), "ranks on several hosts exchange messages");
}

// What a process reads of its peers' memory is resident in it, too.
TEST_F(Arenas, AreReadWhereTheyLie) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "shadow memory counts as resident";
#endif
  for (const bool direct : {true, false})
    run_staged({.direct = direct}, [&](Communicator world) {
      Buffers buffers(world, true);
      constexpr std::int64_t kBytes = 4 << 20;
      auto full = buffers.make<std::byte>(world.world() * kBytes);
      world.barrier();
      const std::int64_t before = read_process_memory().resident_bytes;
      world.all_gather(full.data() + world.rank() * kBytes, full.data(), kBytes);
      const std::int64_t growth = read_process_memory().resident_bytes - before;
      if (direct)
        EXPECT_GE(growth, (world.world() - 1) * kBytes);
      else
        EXPECT_LT(growth, kBytes / 2);
    });
}

TEST_F(Arenas, ServeEveryCommunicatorOfTheirRanksUntilTheyGo) {
  run_staged({}, [](Communicator world) {
    const int n = world.world(), me = world.rank();
    Communicator lane = world.duplicate("before");
    for (int round = 0; round < 20; ++round) {
      Buffers buffers(world, true);
      ASSERT_TRUE(buffers.registration().direct) << buffers.registration().reason;
      std::vector<int> members;
      for (int rank = n - 1; rank >= 0; --rank)
        if (rank % 2 == me % 2) members.push_back(rank);
      Communicator half = world.subgroup(members, "half");
      for (Communicator* ranks : {&world, &lane, &half}) {
        auto full = buffers.make<int>(10'000 * ranks->world());
        for (int call = 0; call < 10; ++call) {
          const auto own = full.subspan(static_cast<std::size_t>(10'000 * ranks->rank()), 10'000);
          std::fill(own.begin(), own.end(), 100 * call + ranks->rank());  // would be seen by a late reader
          ranks->all_gather(own.data(), full.data(), 40'000);
          for (std::size_t i = 0; i < full.size(); ++i)
            ASSERT_EQ(full[i], 100 * call + static_cast<int>(i / 10'000));
        }
      }
    }
  });
}

// One sender sends by shared memory so often that a receiver is now and then interrupted between two looks.
using SharedMessages = OfProcesses;
TEST_F(SharedMessages, ReachThoseTheyAreFor) {
  run_staged({}, [](Communicator world) {
    const int peers = world.world() - 1, me = world.rank();
    constexpr int kTimes = 200'000;
    std::minstd_rand random(7);  // the same everywhere
    for (int message = 0; peers > 1 && message < kTimes; ++message) {
      const int to = 1 + static_cast<int>(random() % static_cast<unsigned>(peers));
      int data = message;
      if (me == 0) world.send(&data, sizeof data, to);
      if (me != to) continue;
      data = -1;
      world.recv(&data, sizeof data, 0);
      ASSERT_EQ(data, message);
    }
  });
}

TEST_F(Arenas, DifferentLargeCallsAreNamedByAll) {
  std::vector<std::string> messages;
  const auto rank_main = [](Communicator world) {
    Buffers buffers(world, true);
    auto full = buffers.make<float>(20'000 * world.world()), shard = buffers.make<float>(20'000);
    world.all_gather(shard.data(), full.data(), world.rank() == 0 ? 40'000 : 80'000);
  };
  EXPECT_THROW(run_staged({}, rank_main, &messages), CommunicationError);
  expect_mismatch(messages, "40000 bytes", "80000 bytes");
}

}  // namespace
}  // namespace tessera::contract
