// However a launch ends, nothing of it stays: LauncherTool looks after each test.
#include "tests/launch/launcher_tool.h"

namespace tessera::testing {
namespace {

using NothingLeft = LauncherTool;

TEST_F(NothingLeft, OfWhatRanksLeaveBehind) {
  const Result result = run_shell({"-n", "2"}, "sleep 60 & setsid sleep 60 & true");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(launching::processes_with({mark_}).empty());
}

TEST_F(NothingLeft, OfALauncherThatIsKilled) {
  // A shell's child in a session of its own belongs to no group that is known.
  const pid_t launcher =
      start(shell({"-n", "2"}, tell() + "trap '' TERM HUP INT; setsid sleep 60 & sleep 60 & sleep 60"));
  for (const int rank : {0, 1}) process_of(rank);
  EXPECT_TRUE(soon([&] { return processes_of(0).size() >= 4 && processes_of(1).size() >= 4; }));
  ::kill(launcher, SIGKILL);
  EXPECT_EQ(finish(launcher).status, -SIGKILL);
  EXPECT_TRUE(nothing_left());
}

TEST_F(NothingLeft, OfOneThatIsInterrupted) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    for (const int rank : {0, 1}) std::filesystem::remove(folder_.file("pid" + std::to_string(rank)));
    const pid_t launcher = start(
        shell({"-n", "2"}, tell() + "trap 'echo saved; exit 0' INT TERM HUP; while :; do sleep 0.05; done"));
    for (const int rank : {0, 1}) process_of(rank);
    std::this_thread::sleep_for(50ms);  // the traps stand
    ::kill(launcher, number);
    const Result result = finish(launcher);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, "saved\nsaved\n");
    EXPECT_THAT(result.err, HasSubstr(" goes to all ranks"));
  }
}

TEST_F(NothingLeft, OfRanksThatASignalEnds) {
  const pid_t launcher = start(shell({"-n", "2"}, tell() + "exec sleep 60"));
  for (const int rank : {0, 1}) process_of(rank);
  ::kill(launcher, SIGTERM);
  const Result result = finish(launcher);
  EXPECT_EQ(result.status, 128 + SIGTERM);
  EXPECT_EQ(lines_of(result.err), 1) << result.err;  // nobody is lost who ended as told
}

TEST_F(NothingLeft, OfOneThatIsInterruptedTwice) {
  const pid_t launcher = start(shell({"-n", "2"}, tell() + "trap '' INT; while :; do sleep 0.05; done"));
  for (const int rank : {0, 1}) process_of(rank);
  std::this_thread::sleep_for(50ms);
  ::kill(launcher, SIGINT);
  std::this_thread::sleep_for(100ms);
  ::kill(launcher, SIGINT);  // the same wish
  std::this_thread::sleep_for(1'200ms);
  EXPECT_FALSE(processes_of(0).empty());
  ::kill(launcher, SIGINT);
  EXPECT_EQ(finish(launcher).status, 128 + SIGINT);
}

TEST_F(NothingLeft, AndNobodyIsLostWhileAllAreSuspended) {
  const pid_t launcher = start(shell({"-n", "2", "--heartbeat", "0.3"}, until_let_go()));
  const pid_t first = process_of(0), second = process_of(1);
  ::kill(launcher, SIGTSTP);
  EXPECT_TRUE(soon([&] {
    return launching::is_stopped(launcher) && launching::is_stopped(first) && launching::is_stopped(second);
  }));
  std::this_thread::sleep_for(700ms);
  ::kill(launcher, SIGCONT);
  let_go();
  const Result result = finish(launcher);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace tessera::testing
