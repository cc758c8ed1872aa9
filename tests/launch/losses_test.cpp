// A rank is lost: one line says which and why, the others are ended, and the status is the lost rank's.
#include <filesystem>
#include <fstream>

#include "tessera/communicator.h"
#include "tests/launch/launcher_tool.h"

namespace tessera::testing {
namespace {

using LaunchLosses = LauncherTool;

// One line on the standard error.
void expect_line(const Result& result, const std::string& pattern) {
  EXPECT_EQ(lines_of(result.err), 1) << result.err;
  EXPECT_THAT(result.err, MatchesRegex("tessera launch: " + pattern + "\n"));
}

TEST_F(LaunchLosses, AStatus) {
  const Result result = run_shell({"-n", "3"}, "[ $RANK = 1 ] && exit 3; exec sleep 60");
  EXPECT_EQ(result.status, 3);
  expect_line(result, "rank 1 .pid [0-9]+. ended with status 3; the other ranks are ended");
}

TEST_F(LaunchLosses, ASignal) {
  const Result result = run_shell({"-n", "3"}, "[ $RANK = 2 ] && kill -SEGV $$; exec sleep 60");
  EXPECT_EQ(result.status, 128 + SIGSEGV);
  expect_line(result, "rank 2 .pid [0-9]+. was killed by signal 11 .SIGSEGV.; the other ranks are ended");
}

TEST_F(LaunchLosses, TheLastRank) {
  const Result result = run_shell({"-n", "2"}, "[ $RANK = 1 ] && { sleep 0.3; exit 5; }; true");
  EXPECT_EQ(result.status, 5);
  expect_line(result, "rank 1 .pid [0-9]+. ended with status 5");
}

TEST_F(LaunchLosses, AStopThatLasts) {
  const auto begin = std::chrono::steady_clock::now();
  const Result result = run_shell({"-n", "2", "--heartbeat", "0.5", "--grace", "30"},
                                  "[ $RANK = 1 ] && kill -STOP $$; exec sleep 60");
  EXPECT_EQ(result.status, 128 + SIGSTOP);
  expect_line(result, "rank 1 .pid [0-9]+. was stopped for 0.5 s; the other ranks are ended");
  // Nobody waits through the grace for a process that stands still.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

TEST_F(LaunchLosses, NotAStopThatIsShort) {
  const Result result = run_shell({"-n", "2", "--heartbeat", "3"},
                                  "[ $RANK = 1 ] && { (sleep 0.3; kill -CONT $$) & kill -STOP $$; }; true");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

TEST_F(LaunchLosses, EndWhatDoesNotHeedSigterm) {
  const Result result =
      run_shell({"-n", "2", "--grace", "0.3"},
                "[ $RANK = 1 ] && { sleep 0.2; exit 4; }; trap '' TERM; while :; do sleep 0.05; done");
  EXPECT_EQ(result.status, 4);
  EXPECT_EQ(lines_of(result.err), 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("kills the ranks that are left 0.3 s after SIGTERM\n"));
}

TEST_F(LaunchLosses, LetOthersEndByThemselves) {
  const Result result = run_shell({"-n", "2"},
                                  "[ $RANK = 1 ] && { sleep 0.3; exit 4; }; trap 'echo saved; exit 0' TERM; "
                                  "while :; do sleep 0.05; done");
  EXPECT_EQ(result.status, 4);
  EXPECT_EQ(result.out, "saved\n");
}

// Peers notice it first and end with errors of their own; the launcher names the cause all the same.
TEST_F(LaunchLosses, AreNamedByTheirCause) {
  if (!control_available()) GTEST_SKIP() << "a build without asio";
  const Result result = run({"-n", "4", "--", TESSERA_RANK_PROGRAM, "die", "2"});
  EXPECT_EQ(result.status, 128 + SIGKILL);
  EXPECT_THAT(result.err, ::testing::ContainsRegex("tessera launch: rank 2 .pid [0-9]+. was killed by signal "
                                                   "9 .SIGKILL."));
  EXPECT_THAT(result.err, HasSubstr("peer says: "));  // and was not cut off
  EXPECT_THAT(result.err, HasSubstr("rank 2"));
}

// Where two ranks end at once, the killed one is the cause.
TEST_F(LaunchLosses, PreferASignalToAStatus) {
  const Result result = run_shell({"-n", "2"}, "[ $RANK = 0 ] && exit 1; sleep 0.02; kill -9 $$");
  EXPECT_EQ(result.status, 128 + SIGKILL) << result.err;
}

// A control group with little memory, by either version of the interface.
class MemoryGroup {
 public:
  MemoryGroup() {
    const std::string name = "tessera-launch-test-" + std::to_string(::getpid());
    for (const auto& [root, limit] :
         {std::pair<std::string, std::string>{"/sys/fs/cgroup/memory/", "memory.limit_in_bytes"},
          {"/sys/fs/cgroup/", "memory.max"}}) {
      std::error_code error;
      if (!std::filesystem::create_directory(root + name, error) || error) continue;
      folder_ = root + name;
      if (std::filesystem::exists(folder_ + "/" + limit) && write(limit, "33554432")) {
        write("memory.swap.max", "0");
        return;
      }
      std::filesystem::remove(folder_, error);
      folder_.clear();
    }
  }
  ~MemoryGroup() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
  }
  const std::string& folder() const { return folder_; }  // empty: the system allows none

 private:
  bool write(const std::string& file, const std::string& text) const {
    const std::string path = folder_ + "/" + file;
    if (!std::filesystem::exists(path)) return false;
    std::ofstream out(path);
    out << text;
    out.flush();
    return out.good();
  }
  std::string folder_;
};

TEST_F(LaunchLosses, ForWantOfMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a launcher with shadow memory is no smaller than the limit";
#endif
  const MemoryGroup group;
  if (group.folder().empty()) GTEST_SKIP() << "this user may not limit the memory of a control group";
  // It is as in a container, whose control group the launcher is in, too. The rank is by far the largest
  // there.
  const Result result = finish_process(
      start_process({"/bin/sh", "-c",
                     "echo $$ > " + group.folder() +
                         "/cgroup.procs || exit 77; exec " TESSERA_TOOL
                         " launch -n 2 -- /bin/sh -c '[ $RANK = 1 ] && exec tail /dev/zero; exec sleep 60'"},
                    printed()),
      printed());
  if (result.status == 77) GTEST_SKIP() << "processes may not be moved into " << group.folder();
  EXPECT_EQ(result.status, 128 + SIGKILL);
  expect_line(result,
              "rank 1 .pid [0-9]+. was killed by signal 9 .SIGKILL., by the kernel for want of memory; the "
              "other ranks are ended");
}

}  // namespace
}  // namespace tessera::testing
