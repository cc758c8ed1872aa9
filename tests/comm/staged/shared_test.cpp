// The memory that processes share, without MPI: forked processes, one of which dies.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <new>
#include <thread>

#include "src/comm/staged/backend.h"

namespace tessera::comm {
namespace {

constexpr std::int64_t kRoom = 1 << 20;
constexpr std::chrono::milliseconds kAMoment{50};
constexpr std::chrono::seconds kLong{20};

// Long before the deadline, in a message with all of `texts`.
void expect_rank_1_blamed(const std::vector<std::string>& texts, const std::function<void()>& call) {
  const auto start = device::Clock::now();
  try {
    call();
    FAIL() << "met a process that is gone";
  } catch (const CommunicationError& error) {
    EXPECT_EQ(error.culprit(), 1);
    const std::string what = error.what();
    for (const std::string& text : texts) EXPECT_NE(what.find(text), std::string::npos) << what;
  }
  EXPECT_LT(device::Clock::now() - start, kLong / 2);
}

class SharedRange : public ::testing::Test {
 protected:
  void SetUp() override {
    bytes_ = SharedWorld::range_bytes(kRanks, kRoom);
    void* const base = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(base, MAP_FAILED);
    shared_ = new (base) SharedWorld(kRanks, bytes_);
  }
  void TearDown() override { munmap(shared_, static_cast<std::size_t>(bytes_)); }

  std::shared_ptr<StagedWorld> world_of(int rank, std::chrono::milliseconds deadline = kLong) {
    return std::make_shared<StagedWorld>(
        StagedWorld::Place{.shared = shared_,
                           .hosts = {.rank = rank, .first_rank = IdVector<int>(kRanks, 0)}},
        StagedOptions{.deadline = deadline});
  }

  // Runs `main` in a process that ends without a word; returns at once, or when it has ended.
  template <class Main>
  void in_child(const Main& main, bool wait) {
    const pid_t child = fork();
    if (child == 0) {
      main();
      _exit(0);
    }
    if (wait) waitpid(child, nullptr, 0);
    children_.push_back(child);
  }

  static constexpr int kRanks = 2;
  std::int64_t bytes_ = 0;
  SharedWorld* shared_ = nullptr;
  std::vector<pid_t> children_;
};

// A process that was stopped while it waited says so for ever.
TEST_F(SharedRange, WhoWaitsShowsItself) {
  const std::shared_ptr<StagedWorld> world = world_of(1);
  shared_->set_state(0, RankState::waiting);
  shared_->set_state(1, RankState::waiting);
  const auto until = device::Clock::now() + std::chrono::milliseconds(700);
  while (device::Clock::now() < until) {
    world->look_around();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(shared_->state(1), RankState::waiting);
  EXPECT_EQ(shared_->state(0), RankState::working);
  shared_->set_state(0, RankState::waiting);
  EXPECT_EQ(shared_->state(0), RankState::waiting);
}

TEST_F(SharedRange, AProcessThatIsGoneIsNoticedLongBeforeTheDeadline) {
  std::signal(SIGCHLD, SIG_IGN);  // so that the child is gone once it has ended
  in_child(
      [this] {
        Communicator ranks = communicator_of(world_of(1));
        ranks.barrier();
        raise(SIGKILL);
      },
      false);
  Communicator ranks = communicator_of(world_of(0));
  ranks.barrier();
  expect_rank_1_blamed({"barrier #2 of unit 'block.1' on 'world'", "the process of rank 1 is gone"},
                       [&] { ranks.barrier({.unit = "block.1"}); });
  std::signal(SIGCHLD, SIG_DFL);
}

TEST_F(SharedRange, ARankThatDiedBeforeTheOthersCameIsNoticedLongBeforeTheDeadline) {
  std::signal(SIGCHLD, SIG_IGN);
  in_child(
      [this] {
        const std::shared_ptr<StagedWorld> world = world_of(1);
        raise(SIGKILL);
      },
      true);
  Communicator ranks = communicator_of(world_of(0));
  expect_rank_1_blamed({"the process of rank 1 is gone"}, [&] { ranks.barrier(); });
  std::signal(SIGCHLD, SIG_DFL);
}

// Its PID says nothing here, where it is no process's.
TEST_F(SharedRange, AProcessOfAnotherPidNamespaceIsNotTakenForDead) {
  pid_t unused = 2;
  while (kill(unused, 0) == 0 || errno != ESRCH) ++unused;
  in_child(
      [this, unused] {
        if (unshare(CLONE_NEWPID) != 0) return;
        const pid_t first = fork();  // of the namespace, which ends with it
        for (pid_t last = 1; first == 0 && last < unused; ++last) {
          const pid_t next = fork();
          if (next == 0 && getpid() == unused) shared_->enter(1);
          if (next == 0) _exit(0);
          waitpid(next, nullptr, 0);
        }
        if (first == 0) _exit(0);
        waitpid(first, nullptr, 0);
        shared_->set_state(1, RankState::working);  // says that it has been there
      },
      true);
  if (shared_->state(1) == RankState::unknown) GTEST_SKIP() << "this machine refuses namespaces";
  shared_->enter(0);
  EXPECT_FALSE(shared_->look_for_dead(0));
  EXPECT_FALSE(shared_->ended(1));
}

// Its arena stays readable, and nobody waits for its reads.
TEST_F(SharedRange, ARankThatDiesWhileItReadsItsPeersIsNoticedLongBeforeTheDeadline) {
  constexpr std::int64_t kBytes = 1 << 20;
  std::signal(SIGCHLD, SIG_IGN);
  in_child(
      [this] {
        std::signal(SIGSEGV, SIG_DFL);
        Communicator ranks = communicator_of(world_of(1));
        Arena arena({.bytes = kBytes, .shared = true});
        ranks.register_arena(arena);
        auto* const full = static_cast<std::byte*>(
            mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(full, kBytes, PROT_READ);  // where rank 0's shard should go
        ranks.all_gather(arena.base(), full, kBytes, {.unit = "block.1"});
      },
      false);
  Communicator ranks = communicator_of(world_of(0));
  Arena arena({.bytes = 2 * kBytes, .shared = true});
  const ArenaRegistration registration = ranks.register_arena(arena);
  EXPECT_TRUE(registration.direct) << registration.reason;
  expect_rank_1_blamed({"of unit 'block.1' on 'world'", "the process of rank 1 is gone"},
                       [&] { ranks.all_gather(arena.base(), arena.base(), kBytes, {.unit = "block.1"}); });
  std::signal(SIGCHLD, SIG_DFL);
}

// A descriptor of another file, as where processes run in PID namespaces of their own.
TEST(MappedArenas, AFileThatIsNotTheArenaIsRefused) {
  const Arena own({.bytes = 4096, .shared = true}), other({.bytes = 4096, .shared = true});
  SharedArena shared = SharedArena::of(other);
  MappedArenas arenas(own, 0, 2, {});
  arenas.map(1, shared);
  other.base()[100] = std::byte{7};
  EXPECT_EQ(*arenas.address(1, 100), std::byte{7});
  EXPECT_EQ(arenas.address(0, 100), own.base() + 100);
  EXPECT_EQ(arenas.offset_of(own.base() + 4095), 4095);
  EXPECT_EQ(arenas.offset_of(own.base() + 4096), -1);
  EXPECT_EQ(arenas.offset_of(own.base() - 1), -1);

  const auto refusal_of = [&](const SharedArena& arena) -> std::string {
    try {
      arenas.map(1, arena);
    } catch (const EnvironmentError& error) {
      return error.what();
    }
    return "";
  };
  shared.file.descriptor = own.file().descriptor;
  EXPECT_NE(refusal_of(shared).find("is not the arena of rank 1"), std::string::npos) << refusal_of(shared);
  shared.file.descriptor = 99999;
  EXPECT_NE(refusal_of(shared).find("No such file"), std::string::npos) << refusal_of(shared);
  EXPECT_NE(refusal_of(SharedArena::of(Arena({.bytes = 1}))).find("no memory that other processes"),
            std::string::npos);
}

TEST_F(SharedRange, AMutexWhoseOwnerDiedIsLostAtOnceForAll) {
  auto* const mutex = new (shared_) SharedMutex;  // instead of the world
  in_child([mutex] { mutex->try_lock_for(kLong, 1); }, true);
  EXPECT_FALSE(mutex->lost()) << "nobody has asked for it since";
  const auto start = device::Clock::now();
  for (int time = 0; time < 2; ++time) EXPECT_FALSE(mutex->try_lock_for(kLong, 0));
  in_child([mutex] { _exit(mutex->try_lock_for(kLong, 1) ? 1 : 0); }, false);
  int status = 0;
  waitpid(children_.back(), &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_LT(device::Clock::now() - start, kLong / 2);
  EXPECT_TRUE(mutex->lost());
  EXPECT_EQ(mutex->owner(), 1);
}

// As one that was stopped.
TEST_F(SharedRange, AMutexWhoseOwnerDoesNotGoOnIsNotWaitedForForEver) {
  auto* const mutex = new (shared_) SharedMutex;
  ASSERT_TRUE(mutex->try_lock_for(kAMoment, 0));
  in_child(
      [mutex] {
        if (mutex->try_lock_for(kAMoment, 1)) raise(SIGKILL);
      },
      false);
  int status = 0;
  ASSERT_EQ(waitpid(children_.back(), &status, 0), children_.back());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_FALSE(mutex->lost());
  mutex->unlock();
}

struct Pair {
  std::uint64_t first = 0, second = 0;
  std::array<std::uint64_t, 60> rest{};
};

TEST_F(SharedRange, WhatIsPublishedIsReadWholeWhileItIsWritten) {
  auto* const published = new (shared_) Published<Pair>;
  EXPECT_EQ(published->read().value().first, 0u);
  in_child(
      [published] {
        for (std::uint64_t i = 1;; ++i) {
          Pair pair{.first = i, .second = ~i};
          pair.rest.fill(i);
          published->write(pair);
        }
      },
      false);
  constexpr int kReads = 100;
  int seen = 0;
  std::uint64_t last = 0;
  for (const auto until = device::Clock::now() + kLong; seen < kReads && device::Clock::now() < until;) {
    const std::optional<Pair> pair = published->read();
    if (!pair || pair->first == last) continue;
    last = pair->first;
    ++seen;
    ASSERT_EQ(pair->second, ~pair->first);
    for (const std::uint64_t word : pair->rest) ASSERT_EQ(word, pair->first);
  }
  EXPECT_EQ(seen, kReads);
  kill(children_.back(), SIGKILL);
  waitpid(children_.back(), nullptr, 0);
}

TEST_F(SharedRange, TheFirstFailureStays) {
  in_child([this] { shared_->fail(1, 1, "the disk is full"); }, true);
  shared_->fail(0, -1, "a consequence");
  EXPECT_TRUE(shared_->failed());
  EXPECT_EQ(shared_->failure().reporter, 1);
  EXPECT_STREQ(shared_->failure().message.data(), "the disk is full");
}

TEST_F(SharedRange, ALongMessageIsCut) {
  shared_->fail(0, 0, std::string(100'000, 'x'));
  EXPECT_EQ(std::string(shared_->failure().message.data()).size(), shared_->failure().message.size() - 1);
}

SharedWorld::RoomWanted wanted(std::uint64_t key, std::int64_t best_bytes, std::int64_t least_bytes) {
  return {.key = {.low = key}, .members = 2, .best_bytes = best_bytes, .least_bytes = least_bytes};
}

TEST_F(SharedRange, MembersGetTheSameRoomAndGroupsDisjointOnes) {
  int initialized = 0;
  const auto join = [&](std::uint64_t key) {
    return shared_->join(0, wanted(key, 40'000, 16'384), kLong, [&](SharedWorld::Room) { ++initialized; });
  };
  const auto a = join(1), b = join(2), a_again = join(1);
  EXPECT_EQ(initialized, 2);
  EXPECT_EQ(a.base, a_again.base);
  EXPECT_EQ(a.bytes, a_again.bytes);
  EXPECT_TRUE(b.base >= a.base + a.bytes || a.base >= b.base + b.bytes);
  EXPECT_GE(a.bytes, 40'000);
}

TEST_F(SharedRange, RoomIsSharedFairlyRefusedWhenGoneAndFreeWhenAllHaveLeft) {
  const auto nothing = [](SharedWorld::Room) {};
  std::vector<SharedWorld::Room> rooms;
  for (std::uint64_t key = 1; key <= 16; ++key)
    rooms.push_back(shared_->join(0, wanted(key, kRoom, 16'384), kLong, nothing));  // each would take all
  for (std::uint64_t key = 17; key <= 64; ++key) try {
      rooms.push_back(shared_->join(0, wanted(key, kRoom, 16'384), kLong, nothing));
    } catch (const EnvironmentError&) {
      break;
    }
  EXPECT_GE(rooms.size(), 16u);
  EXPECT_THROW(shared_->join(0, wanted(100, kRoom, kRoom / 4), kLong, nothing), EnvironmentError);
  const SharedWorld::Room first = rooms[0];
  shared_->leave(0, first.group, kLong);
  EXPECT_THROW(shared_->join(0, wanted(101, 65'536, 65'536), kLong, nothing), EnvironmentError)
      << "one member is left";
  shared_->leave(0, first.group, kLong);
  EXPECT_EQ(shared_->join(0, wanted(102, 65'536, 65'536), kLong, nothing).base, first.base);
}

TEST_F(SharedRange, AGroupGetsTheLeastWhereNoMoreFits) {
  constexpr std::int64_t kBlock = SharedWorld::kBlockBytes;
  const auto nothing = [](SharedWorld::Room) {};
  std::vector<int> groups;
  for (std::uint64_t key = 1; key <= kRoom / kBlock; ++key)
    groups.push_back(shared_->join(0, wanted(key, kBlock, kBlock), kLong, nothing).group);
  for (std::size_t i = 0; i < groups.size(); i += 2)  // leaves gaps of one block
    for (int rank = 0; rank < kRanks; ++rank) shared_->leave(rank, groups[i], kLong);
  EXPECT_EQ(shared_->join(0, wanted(100, kBlock * 3 / 2, kBlock), kLong, nothing).bytes, kBlock);
}

TEST_F(SharedRange, CommunicatorsThatCannotLeaveWaitForOneDeadlineInAll) {
  constexpr std::chrono::milliseconds kDeadline{500};
  std::vector<std::vector<Communicator>> lanes(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    lanes[rank] = {communicator_of(world_of(rank, kDeadline))};
    for (const char* name : {"a", "b", "c"}) lanes[rank].push_back(lanes[rank][0].duplicate(name));
  }
  in_child(
      [this] {
        shared_->join(1, wanted(1, kRoom, 16'384), kLong, [](SharedWorld::Room) { raise(SIGSTOP); });
      },
      false);
  ASSERT_EQ(waitpid(children_.back(), nullptr, WUNTRACED), children_.back());
  const auto time_to_leave = [&](int rank) {
    const auto start = device::Clock::now();
    lanes[rank].clear();
    return device::Clock::now() - start;
  };
  const auto waited = time_to_leave(0);
  EXPECT_GE(waited, kDeadline);
  EXPECT_LT(waited, 3 * kDeadline);
  shared_->fail(1, 1, "the disk is full");
  EXPECT_LT(time_to_leave(1), kDeadline);
  kill(children_.back(), SIGKILL);
  waitpid(children_.back(), nullptr, 0);
}

// One that dies while it has the table of groups. Nobody takes note that it ended, as where a process with
// much memory takes its time: so only the table tells.
class ARankThatDiesWithTheTable : public SharedRange {
 protected:
  void SetUp() override {
    SharedRange::SetUp();
    in_child([this] { meet_and_die(); }, false);
    ranks_ = communicator_of(world_of(0));
    leaves_ = ranks_.duplicate("leaves");
    ranks_.barrier();
    siginfo_t info;
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(children_.back()), &info, WEXITED | WNOWAIT), 0);
  }

  void TearDown() override {
    waitpid(children_.back(), nullptr, 0);
    leaves_ = ranks_ = {};
    SharedRange::TearDown();
  }

  // Where the group 'made' has been noted, and is not laid out yet.
  void meet_and_die() {
    Communicator ranks = communicator_of(world_of(1));
    ranks.barrier();
    const std::shared_ptr<StagedWorld> world = world_of(1);  // counts calls anew
    const GroupKey key = world->key_of(world->key_of({}, {0, 1}, "world"), {0, 1}, "made");
    shared_->join(1, {.key = key, .members = 2, .best_bytes = kRoom, .least_bytes = 16'384}, kLong,
                  [](SharedWorld::Room) { raise(SIGKILL); });
  }

  Communicator ranks_, leaves_;
};

constexpr const char* kDiedWithTheTable =
    "the process of rank 1 is gone: it died as it made or left a communicator";

TEST_F(ARankThatDiesWithTheTable, IsNamedToWhoMakesACommunicatorAndFromThenOn) {
  expect_rank_1_blamed({"making the communicator 'made'", kDiedWithTheTable},
                       [&] { ranks_.duplicate("made").barrier(); });
  expect_rank_1_blamed({"barrier #2 on 'world'", kDiedWithTheTable}, [&] { ranks_.barrier(); });
}

TEST_F(ARankThatDiesWithTheTable, IsNamedToWhoWaitsOnceAnotherLeftACommunicator) {
  leaves_ = {};
  EXPECT_FALSE(shared_->failed()) << "a destructor tells nobody";
  expect_rank_1_blamed({"barrier #2 on 'world'", kDiedWithTheTable}, [&] { ranks_.barrier(); });
}

TEST_F(SharedRange, ARankThatDiedWithTheTableBeforeItSaidWhoItIsIsNamedOnceItIsGone) {
  Communicator ranks = communicator_of(world_of(0));
  in_child(
      [this] {
        const std::shared_ptr<StagedWorld> world = world_of(1);
        shared_->join(-1, wanted(1, kRoom, 16'384), kLong, [](SharedWorld::Room) { raise(SIGKILL); });
      },
      false);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(children_.back()), &info, WEXITED | WNOWAIT), 0);
  const std::jthread launcher([this] {
    std::this_thread::sleep_for(kAMoment);
    waitpid(children_.back(), nullptr, 0);
  });
  expect_rank_1_blamed({"making the communicator 'made'", "the process of rank 1 is gone"},
                       [&] { ranks.duplicate("made"); });
}

}  // namespace
}  // namespace tessera::comm
