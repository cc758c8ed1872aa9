// What rank 0 does for ranks that are there, and what these do without it.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tessera/id_vector.h"
#include "tests/comm/control/ends.h"
#include "tests/program/sanitized.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLong{15'000};

// What rank 0's barrier says when rank 1, which is welcome, does this.
std::string barrier_while(const std::function<void(RawRank&)>& rank_one) {
  const int port = free_port();
  std::string text;
  std::thread zero([&] {
    text = error_of([&] { make_control_world({.world = 2, .port = port, .deadline = kLong}).barrier(); });
  });
  RawRank one(port);
  one.join(1, 2);
  rank_one(one);
  zero.join();
  return text;
}

std::string group_of(const std::vector<int>& ranks) {
  return barrier_while([&](RawRank& one) {
    comm::FrameHeader group = of_kind(comm::FrameKind::group);
    group.group = 77;
    group.member = static_cast<int>(ranks.size());
    one.say(group, {reinterpret_cast<const char*>(ranks.data()), ranks.size() * sizeof(int)});
    comm::FrameHeader call = of_kind(comm::FrameKind::call);
    call.group = 77;
    call.peer = 0;
    call.call.operation = comm::Operation::send;
    call.deadline_us = 1000;
    one.say(call);
  });
}

TEST(ControlService, AGroupIsOfRanksOfTheWorld) {
  const std::string barrier = "rank 0: barrier #1 on 'world': rank 1 failed: ";
  for (const std::vector<int>& ranks : std::vector<std::vector<int>>{{-5'000'000}, {1, 2}, {1, 1}, {0}, {}})
    EXPECT_EQ(group_of(ranks), barrier + "it made a group that is none of this world's, or without itself");
  EXPECT_EQ(barrier_while([](RawRank& one) {
              comm::FrameHeader call = of_kind(comm::FrameKind::call);
              call.group = 78;
              one.say(call);
            }),
            barrier + "it made a call of a group that it is not in");
  EXPECT_EQ(barrier_while([](RawRank& one) { one.say({.rank = 1, .world = 2}); }),
            barrier + "it said twice that it is there");
  EXPECT_EQ(barrier_while([](RawRank& one) {
              comm::FrameHeader wrong;
              wrong.magic = 1;
              one.say(wrong);
            }),
            barrier + "what it sent is no frame of this build of Tessera");
}

TEST(ControlService, MemoryIsTakenAsBytesComeAndNotAsAHeaderClaims) {
  std::int64_t taken = 0;
  barrier_while([&](RawRank& one) {
    comm::FrameHeader claims = of_kind(comm::FrameKind::fail);
    claims.bytes = comm::kMostFrameBytes;
    const std::int64_t before = resident_bytes();
    asio::write(one.socket(), asio::buffer(&claims, sizeof claims));
    std::this_thread::sleep_for(milliseconds(1000));
    taken = resident_bytes() - before;
    one.socket().close();
  });
  EXPECT_LT(taken, comm::kMostFrameBytes / 8);
}

int rank_zero_of_little_memory(int port) {
  Communicator zero = make_control_world({.world = 2, .port = port, .deadline = kLong});
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  setrlimit(RLIMIT_AS, &limit);
  const std::string text = error_of([&] { zero.barrier(); });
  const bool told = text.find("it cannot serve the control connections: std::bad_alloc") != std::string::npos;
  if (!told) std::fprintf(stderr, "%s\n", text.c_str());
  return told ? 0 : 1;
}

TEST(ControlService, MemoryThatRankZeroDoesNotHaveFailsTheWorld) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer's shadow memory is more than any limit";
  const int port = free_port();
  const pid_t child = fork();
  if (child == 0) _exit(rank_zero_of_little_memory(port));
  RawRank one(port);
  one.join(1, 2);
  std::this_thread::sleep_for(milliseconds(200));  // by now it has its limit
  comm::FrameHeader big = of_kind(comm::FrameKind::fail);
  big.bytes = comm::kMostFrameBytes;
  asio::error_code error;
  asio::write(one.socket(), asio::buffer(&big, sizeof big), error);
  const std::vector<char> some(1 << 20);
  while (!error) asio::write(one.socket(), asio::buffer(some), error);  // until it has ended
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ControlService, AnAnswerThatIsNoneIsNotTaken) {
  const auto answered = [](comm::FrameKind kind, std::size_t bytes) {
    const FakeRankZero zero([&](asio::ip::tcp::socket& socket) {
      FakeRankZero::welcome(socket);
      comm::read_frame(socket);  // the group
      comm::FrameHeader answer = comm::read_frame(socket).header;
      answer.kind = kind;
      asio::write(socket, asio::buffer(comm::packed(answer, std::vector<char>(bytes))));
    });
    return error_of([&] {
      const int mine = 1;
      std::vector<int> all(2);
      zero.rank_one(kLong).all_gather(&mine, all.data(), sizeof mine);
    });
  };
  EXPECT_EQ(answered(comm::FrameKind::reply, 8), "none");
  EXPECT_EQ(answered(comm::FrameKind::reply, 3),
            "rank 1: all_gather #1 on 'world': rank 0 answered with 3 bytes, not 8");
  EXPECT_EQ(
      answered(comm::FrameKind::call, 8),
      "rank 1: all_gather #1 on 'world': this rank failed before: what came from rank 0: not a frame that "
      "rank 0 sends");
}

TEST(ControlService, ARankZeroThatDoesNotAnswerIsToldWithTheTimeThatWasWaited) {
  const FakeRankZero stopped(FakeRankZero::welcome);
  Communicator one = stopped.rank_one(milliseconds(200));
  const Clock::time_point begin = Clock::now();
  const std::string text = error_of([&] { one.barrier(); });
  EXPECT_LT(Clock::now() - begin, milliseconds(4000));
  EXPECT_EQ(text,
            "rank 1: barrier #1 on 'world': no answer from rank 0 within 200 ms and 1.0 s more, in which its "
            "process should have said for whom the call waits: it is stopped, or its host is out of reach");
}

// Rank 1 does not come to rank 0's call, since it waits for rank 3.
TEST(ControlService, WhoWaitsForOthersItselfIsNotToBlame) {
  const int port = free_port();
  IdVector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      texts[rank] = error_of([&] {
        Communicator world = make_control_world({.rank = rank, .world = 4, .port = port, .deadline = kLong});
        world.barrier();
        if (rank == 0) {
          Communicator group = world.subgroup({0, 1}, "first");
          group.set_deadline(milliseconds(500));
          group.barrier();
        } else if (rank == 1) {
          world.subgroup({1, 3}, "second").barrier();
        } else {
          std::this_thread::sleep_for(milliseconds(1500));  // rank 2 is waited for by nobody
        }
      });
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(
      texts[0],
      "rank 0: barrier #1 on 'first': no answer from rank 1 within 500 ms, which waits for peers itself; "
      "rank 3 computes, waits outside of a step, or is stopped");
}

// A world of two in a process, of which one comes some time behind the other, of what the process has run.
int rank_that_comes_late() {
  const int port = free_port();
  std::string text;
  std::thread zero([&] {
    text = error_of(
        [&] { make_control_world({.world = 2, .port = port, .deadline = milliseconds(2500)}).barrier(); });
  });
  const std::string other = error_of([&] {
    Communicator one = make_control_world({.rank = 1, .world = 2, .port = port, .deadline = kLong});
    for (int i = 0; i < 80; ++i) std::this_thread::sleep_for(milliseconds(10));
    one.barrier();
  });
  zero.join();
  if (text != "none" || other != "none") std::fprintf(stderr, "%s\n%s\n", text.c_str(), other.c_str());
  return text == "none" && other == "none" ? 0 : 1;
}

TEST(ControlService, TimeInWhichTheProcessIsSuspendedCountsLittle) {
  const pid_t child = fork();
  if (child == 0) _exit(rank_that_comes_late());
  std::this_thread::sleep_for(milliseconds(400));
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  std::this_thread::sleep_for(milliseconds(3500));
  ASSERT_EQ(kill(child, SIGCONT), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace tessera
