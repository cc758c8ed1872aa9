// Launches on several hosts, which are launchers on this one that meet over the loopback interface.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "src/launch/wire.h"
#include "tessera/communicator.h"
#include "tests/launch/launcher_tool.h"

namespace tessera::testing {
namespace {

class LaunchHosts : public LauncherTool {
 protected:
  void SetUp() override {
    LauncherTool::SetUp();
    port_ = launching::free_port();
  }
  Arguments options(int hosts, int host, const Arguments& more = {}) const {
    Arguments all = {"-n",          "2",
                     "--hosts",     std::to_string(hosts),
                     "--host",      std::to_string(host),
                     "--at",        fmt::format("127.0.0.1:{}", port_),
                     "--heartbeat", "1",
                     "--grace",     "0.5"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Host numbers are the names of outputs.
  pid_t start_host(int hosts, int host, const std::string& script, const Arguments& more = {}) const {
    return start(shell(options(hosts, host, more), script), std::to_string(host));
  }
  Result finish_host(pid_t launcher, int host) const { return finish(launcher, std::to_string(host)); }

  // A connection to host 0 by which a test plays another launcher.
  int connect() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    int connection = -1;
    EXPECT_TRUE(soon([&] {
      connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
        return true;
      ::close(connection);
      return false;
    }));
    return connection;
  }

  int port_ = 0;
};

TEST_F(LaunchHosts, NumberTheirRanksInOrder) {
  const std::string script =
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK; echo $MASTER_PORT "
      "$TESSERA_LAUNCH > " +
      folder_.file("met") + "$RANK";
  const pid_t second = start_host(3, 2, script), zeroth = start_host(3, 0, script);
  const pid_t first = start_host(3, 1, script);
  for (const auto& [launcher, host] : {std::pair{zeroth, 0}, {first, 1}, {second, 2}}) {
    const Result result = finish_host(launcher, host);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.err, "");
    for (const int local : {0, 1})
      EXPECT_THAT(result.out, HasSubstr(fmt::format("{}/6 {}/2 {}\n", host * 2 + local, local, host)));
  }
  EXPECT_EQ(read(folder_.file("met0")), read(folder_.file("met5")));
}

TEST_F(LaunchHosts, MayHaveDifferentNumbersOfRanks) {
  const auto of = [&](const std::string& ranks, int host) {
    Arguments arguments = options(2, host);
    arguments[1] = ranks;
    return start(shell(arguments, "echo $RANK/$WORLD_SIZE"), std::to_string(host));
  };
  const pid_t zeroth = of("1", 0), first = of("3", 1);
  EXPECT_EQ(finish_host(zeroth, 0).out, "0/4\n");
  EXPECT_THAT(finish_host(first, 1).out,
              ::testing::AllOf(HasSubstr("1/4\n"), HasSubstr("2/4\n"), HasSubstr("3/4\n")));
}

TEST_F(LaunchHosts, MeetByLaunch) {
  if (!control_available()) GTEST_SKIP() << "a build without asio";
  const std::string script = "exec " TESSERA_RANK_PROGRAM " sum";
  const pid_t zeroth = start_host(2, 0, script), first = start_host(2, 1, script);
  const Result result = finish_host(zeroth, 0), other = finish_host(first, 1);
  EXPECT_EQ(result.out, "sum 10 of 4\n") << result.err;
  EXPECT_EQ(other.status, 0) << other.err;
}

// Host 0 tells all; each prints one line, the same one.
TEST_F(LaunchHosts, AllNameTheRankThatIsLost) {
  const std::string script = "[ $RANK = 3 ] && { sleep 0.3; exit 7; }; exec sleep 60";
  const pid_t zeroth = start_host(2, 0, script), first = start_host(2, 1, script);
  for (const auto& [launcher, host] : {std::pair{zeroth, 0}, {first, 1}}) {
    const Result result = finish_host(launcher, host);
    EXPECT_EQ(result.status, 7);
    EXPECT_EQ(lines_of(result.err), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 3 on host 1 (pid "));
    EXPECT_THAT(result.err, HasSubstr(") ended with status 7"));
  }
}

// Its rank ends with an error before host 0 hears that another host's was killed.
TEST_F(LaunchHosts, NameTheCauseOnAnotherHost) {
  if (!control_available()) GTEST_SKIP() << "a build without asio";
  const std::string script = "exec " TESSERA_RANK_PROGRAM " die 2";
  const pid_t zeroth = start_host(2, 0, script), first = start_host(2, 1, script);
  for (const auto& [launcher, host] : {std::pair{zeroth, 0}, {first, 1}}) {
    const Result result = finish_host(launcher, host);
    EXPECT_EQ(result.status, 128 + SIGKILL) << result.err;
    EXPECT_THAT(result.err, HasSubstr("tessera launch: rank 2 on host 1 (pid "));
  }
}

TEST_F(LaunchHosts, EndWithALauncherThatIsKilled) {
  for (const int killed : {0, 1}) {
    const pid_t launchers[] = {start_host(2, 0, tell() + "exec sleep 60"),
                               start_host(2, 1, tell() + "exec sleep 60")};
    for (int rank = 0; rank < 4; ++rank) process_of(rank);
    ::kill(launchers[killed], SIGKILL);
    EXPECT_EQ(finish_host(launchers[killed], killed).status, -SIGKILL);
    const Result result = finish_host(launchers[1 - killed], 1 - killed);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(lines_of(result.err), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(killed == 0 ? "host 0 is lost: its launcher ended"
                                                  : "host 1 (127.0.0.1) is lost: its launcher ended"));
    EXPECT_TRUE(nothing_left());
    for (int rank = 0; rank < 4; ++rank) std::filesystem::remove(folder_.file("pid" + std::to_string(rank)));
  }
}

TEST_F(LaunchHosts, EndWithALauncherThatIsStopped) {
  for (const int stopped : {0, 1}) {
    const pid_t launchers[] = {start_host(2, 0, tell() + "exec sleep 60"),
                               start_host(2, 1, tell() + "exec sleep 60")};
    for (int rank = 0; rank < 4; ++rank) process_of(rank);
    ::kill(launchers[stopped], SIGSTOP);
    const Result result = finish_host(launchers[1 - stopped], 1 - stopped);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err,
                HasSubstr(stopped == 0 ? "host 0 is lost: nothing was heard of it for 1 s"
                                       : "host 1 (127.0.0.1) is lost: nothing was heard of it for 1 s"));
    ::kill(launchers[stopped], SIGCONT);
    EXPECT_EQ(finish_host(launchers[stopped], stopped).status, 1);
    EXPECT_TRUE(nothing_left());
    for (int rank = 0; rank < 4; ++rank) std::filesystem::remove(folder_.file("pid" + std::to_string(rank)));
  }
}

TEST_F(LaunchHosts, PassSignalsOn) {
  const std::string script = tell() + "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done";
  const pid_t zeroth = start_host(2, 0, script), first = start_host(2, 1, script);
  for (int rank = 0; rank < 4; ++rank) process_of(rank);
  std::this_thread::sleep_for(50ms);
  ::kill(first, SIGTERM);
  for (const auto& [launcher, host] : {std::pair{zeroth, 0}, {first, 1}}) {
    const Result result = finish_host(launcher, host);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, "saved\nsaved\n");
  }
}

TEST_F(LaunchHosts, AreSuspendedTogether) {
  const std::string script = until_let_go();
  const pid_t zeroth = start_host(2, 0, script), first = start_host(2, 1, script);
  for (int rank = 0; rank < 4; ++rank) process_of(rank);
  ::kill(first, SIGTSTP);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_TRUE(soon([&] { return launching::is_stopped(process_of(rank)); })) << rank;
  std::this_thread::sleep_for(1'300ms);
  ::kill(first, SIGCONT);
  let_go();
  for (const auto& [launcher, host] : {std::pair{zeroth, 0}, {first, 1}}) {
    const Result result = finish_host(launcher, host);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.err, "");
  }
}

TEST_F(LaunchHosts, SayWhoIsMissing) {
  const pid_t zeroth = start_host(3, 0, "true", {"--start", "1"}),
              second = start_host(3, 2, "true", {"--start", "60"});
  const Result result = finish_host(zeroth, 0), other = finish_host(second, 2);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("after 1 s host 1 of 3 is missing"));
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.err, HasSubstr("gave up: after 1 s host 1 of 3 is missing"));  // host 0 has told it
  Result alone = finish_host(start_host(2, 1, "true", {"--start", "0.3"}), 1);
  EXPECT_EQ(alone.status, 1);
  EXPECT_THAT(alone.err, HasSubstr(fmt::format("host 0 was not met at 127.0.0.1:{} within 0.3 s", port_)));
}

TEST_F(LaunchHosts, RefuseAnotherLaunch) {
  const pid_t zeroth = start_host(2, 0, "true", {"--start", "2", "--id", "a"});
  const Result other = finish_host(start_host(2, 1, "true", {"--id", "b"}), 1);
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.err, HasSubstr("refuses this host: its --id is 'b', and host 0's is 'a'"));
  const Result more = finish_host(start_host(3, 1, "true", {"--id", "a"}), 1);
  EXPECT_THAT(more.err, HasSubstr("its --hosts is 3, and host 0's is 2"));
  // It waits on for the right one.
  const Result right = finish_host(start_host(2, 1, "true", {"--id", "a"}), 1);
  EXPECT_EQ(right.status, 0) << right.err;
  EXPECT_EQ(finish_host(zeroth, 0).status, 0);
}

TEST_F(LaunchHosts, RefuseAnotherBuildAndStrangers) {
  using launching::Frame;
  using launching::FrameKind;
  using launching::Hello;
  const pid_t zeroth = start_host(2, 0, "true");
  const int stranger = connect();
  EXPECT_GT(::send(stranger, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 0);
  char byte = 0;
  EXPECT_LE(::recv(stranger, &byte, 1, 0), 0);  // it is hung up on
  ::close(stranger);

  const int other = connect();
  const Hello hello{.build = "9.9.9", .host = 1, .hosts = 2, .ranks = 1, .heartbeat_ms = 1000};
  const std::string bytes = packed(Frame{FrameKind::hello, hello.packed()});
  EXPECT_EQ(::send(other, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  std::string come;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::recv(other, buffer, sizeof buffer, 0)) > 0;)
    come.append(buffer, static_cast<std::size_t>(got));
  ::close(other);
  std::vector<Frame> frames;
  ASSERT_TRUE(launching::unpack(come, frames));
  std::erase_if(frames, [](const Frame& frame) { return frame.kind == FrameKind::beat; });
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].kind, FrameKind::refused);
  EXPECT_THAT(frames[0].body.at("why").get<std::string>(),
              HasSubstr("it runs Tessera 9.9.9, and host 0 runs "));

  const Result right = finish_host(start_host(2, 1, "true"), 1);
  EXPECT_EQ(right.status, 0) << right.err;
  const Result result = finish_host(zeroth, 0);
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("host 1 from 127.0.0.1 is refused: it runs Tessera 9.9.9"));
}

TEST_F(LaunchHosts, NeedAFreePortAndAKnownName) {
  const pid_t zeroth = start_host(2, 0, "true", {"--start", "1"});
  ::close(connect());
  const Result taken = finish(start(shell(options(2, 0), "true"), "again"), "again");
  EXPECT_EQ(taken.status, 1);
  EXPECT_THAT(taken.err,
              HasSubstr(fmt::format("host 0 cannot listen on port {}: Address already in use", port_)));
  finish_host(zeroth, 0);
  Arguments arguments = options(2, 1);
  arguments[7] = "no.such.name.invalid:29400";
  const Result unknown = finish(start(shell(arguments, "true"), "1"), "1");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err,
              HasSubstr("--at: 'no.such.name.invalid' is no address, and no name that this host knows"));
}

TEST(LaunchWire, GivesBackWhatItTakes) {
  using namespace launching;
  std::string come =
      packed(Frame{FrameKind::lost, packed(Loss{.host = 2, .rank = 5, .process = 77, .what = "ended"})});
  const std::string next = packed(Frame{FrameKind::beat});
  come += next.substr(0, next.size() - 1);
  std::vector<Frame> frames;
  EXPECT_TRUE(unpack(come, frames));
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(loss_from(frames[0].body).line(3), "rank 5 on host 2 (pid 77) ended");
  come += next.back();
  EXPECT_TRUE(unpack(come, frames));
  EXPECT_EQ(frames.size(), 2u);
  EXPECT_TRUE(come.empty());
  come = "not a frame at all";
  EXPECT_FALSE(unpack(come, frames));
}

}  // namespace
}  // namespace tessera::testing
