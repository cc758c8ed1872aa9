// What the hub does for ranks that do not read what they are sent.
#include <deque>
#include <numeric>

#include "src/comm/control_hub.h"
#include "tests/comm/control_ends.h"
#include "tests/program/sanitized.h"

namespace tessera {
namespace {

using comm::FrameKind;
using std::chrono::milliseconds;

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

TEST(ControlHub, AnAnswerIsHeldOnceForAllRanks) {
  if (testing::kSanitized) GTEST_SKIP() << "shadow memory counts as resident";
  World world(8);
  const std::int64_t before = resident_bytes();
  broadcast(world.ranks);
  expect_answer(world.ranks[0]);
  EXPECT_LT(resident_bytes() - before, static_cast<std::int64_t>(4 * kMuch));
}

}  // namespace
}  // namespace tessera
