// What the hub does for ranks that do not read what they are sent, and in which order it tells of a failure.
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <numeric>
#include <optional>

#include "src/comm/control/hub.h"
#include "tests/comm/control/ends.h"
#include "tests/program/sanitized.h"

namespace tessera {
namespace {

using comm::FrameKind;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLong{15'000};
// More than the system takes for an end that does not read.
constexpr std::size_t kMuch = std::size_t{32} << 20;

// A hub, and the ends of its ranks by number.
struct World {
  explicit World(int world)
      : hub(std::in_place, ControlOptions{.world = world, .port = port, .deadline = kLong}) {
    for (int rank = 0; rank < world; ++rank) ranks.emplace_back(port).join(rank, world);
  }

  const int port = free_port();
  std::optional<comm::ControlHub> hub;
  std::deque<RawRank> ranks;
};

// Rank 0 broadcasts much. Nobody has heard the answer yet.
void broadcast(std::deque<RawRank>& ranks) {
  const std::vector<char> content(kMuch);
  std::vector<int> members(ranks.size());
  std::iota(members.begin(), members.end(), 0);
  comm::FrameHeader group = of_kind(FrameKind::group), call = of_kind(FrameKind::call);
  group.group = call.group = 77;
  group.member = static_cast<int>(members.size());
  call.sequence = 1;
  call.deadline_us = std::chrono::microseconds(kLong).count();
  call.call.operation = comm::Operation::broadcast;
  for (const int rank : members) {
    RawRank& end = ranks[static_cast<std::size_t>(rank)];
    end.say(group, {reinterpret_cast<const char*>(members.data()), members.size() * sizeof(int)});
    call.member = rank;
    end.say(call, rank == 0 ? std::span<const char>(content) : std::span<const char>());
  }
}

void expect_answer(RawRank& rank) {
  const comm::Frame frame = rank.hear();
  EXPECT_EQ(frame.header.kind, FrameKind::reply);
  EXPECT_EQ(frame.bytes.size(), kMuch);
}

void expect_failure(RawRank& rank) {
  const comm::Frame frame = rank.hear();
  EXPECT_EQ(frame.header.kind, FrameKind::failed);
  EXPECT_EQ(frame.text(), "the disk is full");
}

// Rank 1 does not read its answer, behind which it would be told; rank 2 has failed.
std::unique_ptr<World> world_of_which_one_is_not_told() {
  auto world = std::make_unique<World>(3);
  broadcast(world->ranks);
  for (const std::size_t rank : {0U, 2U}) expect_answer(world->ranks[rank]);
  world->ranks[2].say(of_kind(FrameKind::fail), std::string_view("the disk is full"));
  expect_failure(world->ranks[2]);
  return world;
}

TEST(ControlHub, RankZeroHearsOfAFailureWhenTheOthersHaveBeenTold) {
  const auto world = world_of_which_one_is_not_told();
  const Clock::time_point begin = Clock::now();
  std::this_thread::sleep_for(milliseconds(100));
  const std::size_t heard = world->ranks[0].socket().available();
  EXPECT_TRUE(heard == 0 || Clock::now() - begin > milliseconds(300)) << "its process may end now";
  expect_answer(world->ranks[1]);
  expect_failure(world->ranks[0]);
  expect_failure(world->ranks[1]);
}

TEST(ControlHub, RankZeroHearsOfAFailureThatAnotherDoesNotTake) {
  const auto world = world_of_which_one_is_not_told();
  const Clock::time_point begin = Clock::now();
  expect_failure(world->ranks[0]);
  EXPECT_LT(Clock::now() - begin, kLong / 3);
}

TEST(ControlHub, TheEndOfAFailedWorldWaitsAMomentForOneThatTakesNothing) {
  const auto world = world_of_which_one_is_not_told();
  for (const std::size_t rank : {0U, 2U}) world->ranks[rank].say(of_kind(FrameKind::bye));
  const Clock::time_point begin = Clock::now();
  world->hub.reset();
  EXPECT_LT(Clock::now() - begin, kLong / 3);
}

TEST(ControlHub, AnAnswerIsHeldOnceForAllRanks) {
  if (testing::kSanitized) GTEST_SKIP() << "shadow memory counts as resident";
  World world(8);
  const std::int64_t before = resident_bytes();
  broadcast(world.ranks);
  expect_answer(world.ranks[0]);
  EXPECT_LT(resident_bytes() - before, static_cast<std::int64_t>(4 * kMuch));
}

// A process that is rank 0, and ends as soon as it has failed.
[[noreturn]] void fail_and_end(int world, int port, int go) {
  Communicator zero = make_control_world({.world = world, .port = port, .deadline = kLong});
  char any = 0;
  if (read(go, &any, 1) == 1) zero.fail("the disk is full");
  _exit(0);
}

TEST(ControlHub, WhyRankZeroFailedIsToldBeforeItsProcessEnds) {
  constexpr int kWorld = 8, kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    const int port = free_port();
    int go[2];
    ASSERT_EQ(pipe(go), 0);
    const pid_t zero = fork();
    if (zero == 0) fail_and_end(kWorld, port, go[0]);
    std::deque<RawRank> others;
    for (int rank = 1; rank < kWorld; ++rank) others.emplace_back(port).join(rank, kWorld);
    EXPECT_EQ(write(go[1], "x", 1), 1);
    EXPECT_EQ(waitpid(zero, nullptr, 0), zero);
    for (const int end : go) close(end);
    for (RawRank& other : others) ASSERT_NO_THROW(expect_failure(other)) << "round " << round;
  }
}

}  // namespace
}  // namespace tessera
