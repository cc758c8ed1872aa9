// `tessera launch` as a user runs it, with shells as ranks. All that it starts carries a mark in its
// environment, so that a test can see whether anything of it is left.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "src/launch/processes.h"
#include "src/launch/rank_environment.h"
#include "tests/cli/process.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class LauncherTool : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* variable : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                 "PMI_RANK", "PMI_SIZE", "PMIX_RANK"})
      ::unsetenv(variable);
    // A shell that runs the test in the background has it ignore some, and so would the launcher.
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_DFL);
    mark_ = "TESSERA_TEST_MARK=" + launching::draw_launch_id();
    const std::size_t name = mark_.find('=');
    ::setenv(mark_.substr(0, name).c_str(), mark_.c_str() + name + 1, 1);
  }
  void TearDown() override {
    if (go_ >= 0) ::close(go_);
    EXPECT_TRUE(nothing_left()) << "processes are left behind";
    for (const pid_t process : launching::processes_with({mark_})) ::kill(process, SIGKILL);
  }

  // Several at a time are told apart by a name.
  Outputs printed(const std::string& name = "") const {
    return {.out = folder_.file("out" + name), .err = folder_.file("err" + name)};
  }
  pid_t start(const Arguments& arguments, const std::string& name = "") const {
    Arguments all = {TESSERA_TOOL, "launch"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return start_process(all, printed(name));
  }
  Result finish(pid_t launcher, const std::string& name = "") const {
    return finish_process(launcher, printed(name));
  }
  Result run(const Arguments& arguments) const { return finish(start(arguments)); }
  // Ranks that are shells.
  static Arguments shell(Arguments options, const std::string& script) {
    options.insert(options.end(), {"--", "/bin/sh", "-c", script});
    return options;
  }
  Result run_shell(const Arguments& options, const std::string& script) const {
    return run(shell(options, script));
  }

  static bool soon(const std::function<bool()>& is, std::chrono::milliseconds within = 10s) {
    const auto end = std::chrono::steady_clock::now() + within;
    while (!is()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(10ms);
    }
    return true;
  }
  bool nothing_left() const {
    return soon([&] { return launching::processes_with({mark_}).empty(); }, 3s);
  }
  // The ranks of this number that run: each rank's shell, and what it has started.
  std::vector<pid_t> processes_of(int rank) const {
    return launching::processes_with({mark_, "RANK=" + std::to_string(rank)});
  }
  // The rank's own process, when it has written its number to the file, as `echo $$ > $FOLDER/pid$RANK` does.
  pid_t process_of(int rank) const {
    const std::string file = folder_.file("pid" + std::to_string(rank));
    EXPECT_TRUE(soon([&] { return read(file).ends_with('\n'); })) << "rank " << rank << " did not start";
    return static_cast<pid_t>(std::atoi(read(file).c_str()));
  }
  // A script that ends when let_go() says so. It starts no process: a shell that waits for the start of one
  // that a signal has stopped first is not stopped itself.
  std::string until_let_go() {
    EXPECT_EQ(::mkfifo(folder_.file("go").c_str(), 0600), 0);
    return tell() + "read line < " + folder_.file("go");
  }
  // Lets up to eight ranks go, each of which reads a line.
  void let_go() {
    go_ = ::open(folder_.file("go").c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(::write(go_, "\n\n\n\n\n\n\n\n", 8), 8);
  }
  // What a script begins with that process_of() is asked about.
  std::string tell() const { return "echo $$ > " + folder_.file("pid") + "$RANK; "; }

  TemporaryFolder folder_;
  std::string mark_;
  int go_ = -1;
};

inline int lines_of(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace tessera::testing
