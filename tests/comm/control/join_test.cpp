// Who is taken into a world of control connections, and by whom.
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/comm/control/ends.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{15'000};

TEST(ControlJoin, AProcessThatWouldBeARankAgainIsRefused) {
  const int port = free_port();
  std::string second = "none";
  std::vector<int> all(2);
  const auto gather = [](Communicator rank, int mine, std::vector<int>& values) {
    rank.all_gather(&mine, values.data(), sizeof mine);
  };
  std::thread zero([&] {
    EXPECT_EQ(
        error_of([&] { gather(make_control_world({.world = 2, .port = port, .deadline = kLong}), 10, all); }),
        "none");
  });
  EXPECT_EQ(error_of([&] {
              const ControlOptions one{.rank = 1, .world = 2, .port = port, .deadline = kLong};
              const Communicator first = make_control_world(one);
              std::vector<int> values(2);
              second = error_of([&] { gather(make_control_world(one), 99, values); });
              gather(first, 11, values);
            }),
            "none");
  zero.join();
  EXPECT_EQ(second,
            "rank 1: rank 0 at 127.0.0.1:" + std::to_string(port) +
                " refused this process: another process is rank 1 already: each needs a RANK, and each "
                "run a MASTER_PORT, of its own");
  EXPECT_EQ(all, (std::vector<int>{10, 11}));
}

// What rank 0 says, who waits for rank 1, and what the process is told that says hello as that.
struct Refusal {
  std::string of_rank_zero, of_the_other;
};

Refusal refusal_of(const comm::Hello& hello) {
  const int port = free_port();
  Refusal refusal;
  std::thread zero([&] {
    refusal.of_rank_zero = error_of([&] {
      make_control_world({.world = 2, .port = port, .launch = "JOB=7", .deadline = milliseconds(500)})
          .barrier();
    });
  });
  RawRank other(port);
  other.say(hello);
  const comm::Frame answer = other.hear();
  EXPECT_EQ(answer.header.kind, comm::FrameKind::refused);
  refusal.of_the_other = answer.text();
  zero.join();
  return refusal;
}

TEST(ControlJoin, AProcessThatIsNotOfTheWorldIsRefusedAndNamed) {
  const std::vector<std::pair<comm::Hello, std::string>> cases = {
      {{.rank = 1, .world = 3}, "its WORLD_SIZE is 3, rank 0's is 2: all ranks need the same"},
      {{.rank = 5, .world = 8}, "its WORLD_SIZE is 8, rank 0's is 2: all ranks need the same"},
      {{.rank = 5, .world = 2}, "its RANK is 5; use 0 to 1"},
      {{.rank = 1, .world = 2, .build = "0.0.1"},
       std::string("it is of Tessera 0.0.1, rank 0 of ") + comm::Hello::own_build() +
           ": all ranks need one build"},
      {{.rank = 1, .world = 2, .launch = "JOB=8"},
       "it was started with JOB=8, rank 0 with JOB=7: each run needs a MASTER_PORT of its own"},
  };
  for (const auto& [hello, why] : cases) {
    const Refusal refusal = refusal_of(hello);
    EXPECT_EQ(refusal.of_the_other, why);
    EXPECT_EQ(refusal.of_rank_zero,
              "rank 0: barrier #1 on 'world': no answer from rank 1 within 500 ms (rank 1 has not come" +
                  (hello.rank == 1 ? "; a process that would be it was refused: " + why + ")" : ")"));
  }
}

TEST(ControlJoin, WhoHasNotSaidHelloIsNotListenedTo) {
  const int port = free_port();
  std::string text;
  std::thread zero([&] {
    text = error_of([&] { make_control_world({.world = 2, .port = port, .deadline = kLong}).barrier(); });
  });
  for (const comm::FrameKind kind : {comm::FrameKind::bye, comm::FrameKind::fail}) {
    RawRank stray(port);
    stray.say(of_kind(kind));
    EXPECT_THROW(stray.hear(), std::system_error);
  }
  make_control_world({.rank = 1, .world = 2, .port = port, .deadline = kLong}).barrier();
  zero.join();
  EXPECT_EQ(text, "none");
}

// Rank 0 is at the end of its last world when the next one begins.
TEST(ControlJoin, AWorldBehindAnotherHasItsPort) {
  const int port = free_port();
  const auto two_worlds = [&](int rank) {
    for (int world = 0; world < 2; ++world)
      make_control_world({.rank = rank, .world = 3, .port = port, .deadline = kLong}).barrier();
  };
  std::thread zero([&] { EXPECT_EQ(error_of([&] { two_worlds(0); }), "none"); });
  std::thread one([&] { EXPECT_EQ(error_of([&] { two_worlds(1); }), "none"); });
  EXPECT_EQ(error_of([&] {
              Communicator late =
                  make_control_world({.rank = 2, .world = 3, .port = port, .deadline = kLong});
              late.barrier();
              std::this_thread::sleep_for(milliseconds(300));
            }),
            "none");
  EXPECT_EQ(error_of([&] {
              make_control_world({.rank = 2, .world = 3, .port = port, .deadline = kLong}).barrier();
            }),
            "none");
  zero.join();
  one.join();
}

std::string answer_of(RawRank& rank) {
  try {
    return rank.hear().text();
  } catch (const std::system_error&) {
    return "none, it was closed";
  }
}

// A rank's bye and its hello to the next world come by two connections, in any order. The next world may be
// another one.
TEST(ControlJoin, ARankThatEndsAndComesAgainAtOnceIsToTryAgain) {
  for (const bool bye_is_first : {true, false})
    for (const comm::Hello& hello : {comm::Hello{.rank = 1, .world = 2},
                                     {.rank = 1, .world = 3},
                                     {.rank = 1, .world = 2, .launch = "8"}}) {
      const int port = free_port();
      const Communicator zero =
          make_control_world({.world = 2, .port = port, .launch = "7", .deadline = kLong});
      RawRank old(port), next(port);
      old.join(1, 2);
      if (bye_is_first) old.say(of_kind(comm::FrameKind::bye));
      std::this_thread::sleep_for(milliseconds(100));
      next.say(hello);
      std::this_thread::sleep_for(milliseconds(100));
      if (!bye_is_first) old.say(of_kind(comm::FrameKind::bye));
      EXPECT_EQ(answer_of(next), "none, it was closed") << hello.world << hello.launch << bye_is_first;
    }
}

TEST(ControlJoin, WhatIsNoRankZeroIsSaidAtOnce) {
  const FakeRankZero other(
      [](asio::ip::tcp::socket& socket) { asio::write(socket, asio::buffer("SSH-2.0-OpenSSH_9.2\r\n")); });
  const auto begin = std::chrono::steady_clock::now();
  const std::string place = "127.0.0.1:" + std::to_string(other.port());
  EXPECT_EQ(error_of([&] { other.rank_one(kLong); }),
            "rank 1: what answers at " + place +
                " is no rank 0 of this build of Tessera: MASTER_ADDR and MASTER_PORT must name rank 0's host "
                "and a free port there");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 3);
  const auto answer_of = [](const FakeRankZero::Serve& serve) {
    const FakeRankZero zero(serve);
    const std::string text = error_of([&] { zero.rank_one(milliseconds(200)); });
    return text.substr(std::min(text.find(" is no rank 0"), text.size()));
  };
  const std::string otherwise = " is no rank 0 of this build of Tessera, is stopped, or at its end (";
  const std::string remedy =
      " within 200 ms); MASTER_ADDR and MASTER_PORT must name rank 0's host and a free port there";
  EXPECT_EQ(answer_of([](asio::ip::tcp::socket&) {}), otherwise + "it said nothing" + remedy);
  EXPECT_EQ(answer_of([](asio::ip::tcp::socket& socket) { socket.close(); }),
            otherwise + "it ended each connection" + remedy);
}

// As behind another world's rank 0 at its end.
TEST(ControlJoin, ThatNobodyListensAnyLongerIsSaidFirst) {
  asio::io_context io;
  asio::ip::tcp::acceptor listener(io, {asio::ip::address_v4::loopback(), 0});
  const int port = listener.local_endpoint().port();
  std::thread other([&] {
    listener.accept();  // and ends it
    listener.close();
  });
  const std::string text = error_of(
      [&] { make_control_world({.rank = 1, .world = 2, .port = port, .deadline = milliseconds(1500)}); });
  other.join();
  const std::string place = "127.0.0.1:" + std::to_string(port);
  EXPECT_EQ(text.substr(0, text.find(" for ")), "rank 1: no connection to rank 0 at " + place) << text;
  EXPECT_EQ(
      text.substr(std::min(text.find(" ("), text.size())),
      " (Connection refused); what answered there before is no rank 0 of this build of Tessera, is "
      "stopped, or at its end (it ended each connection); MASTER_ADDR and MASTER_PORT must name rank 0's "
      "host and a free port there");
}

TEST(ControlJoin, AHostIsNamedByEitherKindOfAddress) {
  asio::io_context io;
  try {
    const asio::ip::tcp::acceptor six(io, {asio::ip::address_v6::loopback(), 0});
  } catch (const std::system_error& error) {
    GTEST_SKIP() << "no IPv6: " << error.what();
  }
  const int port = free_port();
  std::vector<std::thread> ranks;
  const std::vector<std::string> addresses = {"::1", "::1", "127.0.0.1", "localhost"};
  std::vector<std::string> errors(addresses.size());
  for (std::size_t rank = 0; rank < addresses.size(); ++rank)
    ranks.emplace_back([&, rank] {
      errors[rank] = error_of([&] {
        make_control_world({.rank = static_cast<int>(rank),
                            .world = static_cast<int>(addresses.size()),
                            .address = addresses[rank],
                            .port = port,
                            .deadline = milliseconds(5000)})
            .barrier();
      });
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(errors, std::vector<std::string>(addresses.size(), "none"));
}

// ---- what the system gives ----

// In a child with a network of its own, in which ports are given away in order: what it finds. -1: the system
// does not let it.
int in_own_network(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const auto done = [](int status) { _exit(status); };
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) done(99);
    const int any = ::socket(AF_INET, SOCK_DGRAM, 0);
    ifreq lo{};
    std::strcpy(lo.ifr_name, "lo");
    lo.ifr_flags = IFF_UP;
    if (ioctl(any, SIOCSIFFLAGS, &lo) != 0) done(99);
    std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
    range << "40000 40003\n" << std::flush;
    if (!range) done(99);
    done(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status)) return 98;
  return WEXITSTATUS(status) == 99 ? -1 : WEXITSTATUS(status);
}

TEST(ControlJoin, ARankDoesNotConnectToItself) {
  const int found = in_own_network([] {
    const std::string text = error_of(
        [] { make_control_world({.rank = 1, .world = 2, .port = 40'002, .deadline = milliseconds(1500)}); });
    return text.find("no connection to rank 0 at 127.0.0.1:40002") == std::string::npos ? 1 : 0;
  });
  if (found < 0) GTEST_SKIP() << "the system gives no network of its own";
  EXPECT_EQ(found, 0);
}

std::set<int> sockets() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    struct stat what {};
    if (fstat(descriptor, &what) == 0 && S_ISSOCK(what.st_mode)) found.insert(descriptor);
  }
  return found;
}

TEST(ControlJoin, ProcessesThatARankStartsHaveNoneOfItsConnections) {
  const std::set<int> before = sockets();
  const Communicator alone = make_control_world({.port = free_port(), .deadline = kLong});
  int new_ones = 0;
  for (const int descriptor : sockets()) {
    if (before.contains(descriptor)) continue;
    ++new_ones;
    EXPECT_NE(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0) << descriptor;
  }
  EXPECT_EQ(new_ones, 3) << "the port, and both ends of the connection";
}

// Lets this process open no file with such a number, or a higher one, while it lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t files) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit fewer{.rlim_cur = files, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &fewer);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(ControlJoin, AWorldOfMoreRanksThanFilesIsRefused) {
  const FileLimit limit(200);
  EXPECT_EQ(
      error_of([] { make_control_world({.world = 200, .port = free_port()}); }),
      "rank 0 has a connection to each of 200 ranks, and its process may open 200 files: raise ulimit -n "
      "to 300");
}

TEST(ControlJoin, AConnectionForWhichThereIsNoFileFailsTheWorld) {
  const int port = free_port();
  Communicator zero = make_control_world({.world = 2, .port = port, .deadline = kLong});
  asio::io_context io;
  asio::ip::tcp::socket one(io, asio::ip::tcp::v4());
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  std::string text;
  {
    const FileLimit limit(static_cast<rlim_t>(next));
    one.connect({asio::ip::address_v4::loopback(), static_cast<unsigned short>(port)});
    text = error_of([&] { zero.barrier(); });
  }
  EXPECT_EQ(text,
            "rank 0: barrier #1 on 'world': this rank failed before: it cannot accept connections: Too many "
            "open files; raise ulimit -n");
}

}  // namespace
}  // namespace tessera
