// Runs with states on the disk that are killed at any moment: nothing stays of them, neither a file nor the
// space that one took.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/sample_text.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kKills = 25;  // for each number of ranks
constexpr int kMostDelayMs = 400;

std::int64_t free_bytes(const std::string& folder) {
  struct statvfs system {};
  EXPECT_EQ(::statvfs(folder.c_str(), &system), 0);
  return static_cast<std::int64_t>(system.f_bfree) * static_cast<std::int64_t>(system.f_frsize);
}

// What the process's files without a name in `folder` take of the disk.
std::int64_t unnamed_bytes(pid_t process, const std::string& folder) {
  std::int64_t bytes = 0;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd", gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat file {};
    if (target.starts_with(folder + "/") && ::stat(entry.path().c_str(), &file) == 0)
      bytes += static_cast<std::int64_t>(file.st_blocks) * 512;
  }
  return bytes;
}

class Kill : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string text = sample_text(600);
    const std::string data = folder_.write("text.txt", std::as_bytes(std::span(text)));
    const std::string config =
        "model = {layers = 4, heads = 4, channels = 256, context = 16}\n"
        "mesh = {shard = " +
        std::to_string(GetParam()) +
        "}\n"
        "offload = {states = \"disk\", directory = \"" +
        disk_.file("") +
        "\"}\n"
        "run = {sequences = 1, length = 16}\n"
        "data = {train = \"" +
        data + "\"}\n";
    config_ = folder_.write("run.toml", std::as_bytes(std::span(config)));
  }

  pid_t start(const std::string& steps) const {
    const std::string set = "run.steps=" + steps, out = folder_.file("out");
    const pid_t child = ::fork();
    if (child != 0) return child;
    const int file = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::execl(TESSERA_TOOL, TESSERA_TOOL, "train", config_.c_str(), "--set", set.c_str(), nullptr);
    ::_exit(127);
  }

  // Until as much is free as before, but for what others may write meanwhile; the system takes back what a
  // killed process had in flight in its own time.
  bool comes_back(std::int64_t before, std::int64_t tolerance) const {
    for (const auto end = Clock::now() + std::chrono::seconds(10); Clock::now() < end;
         std::this_thread::sleep_for(milliseconds(2)))
      if (free_bytes(disk_.file("")) >= before - tolerance) return true;
    return false;
  }

  TemporaryFolder folder_, disk_;
  std::string config_;
};

TEST_P(Kill, LeavesNothingOnTheDisk) {
  const std::string folder = std::filesystem::canonical(disk_.file("")).string();
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  std::uniform_int_distribution<int> delay_ms(0, kMostDelayMs);
  int with_file = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const std::int64_t before = free_bytes(folder);
    const pid_t child = start("1000000");
    // Every other one at a moment after the file was made, however long that took.
    for (const auto end = Clock::now() + std::chrono::seconds(30);
         kill % 2 == 1 && unnamed_bytes(child, folder) == 0 && Clock::now() < end;)
      std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(delay_ms(random) / (kill % 2 == 1 ? 4 : 1)));
    ASSERT_EQ(::kill(child, SIGSTOP), 0);
    const std::int64_t taken = unnamed_bytes(child, folder);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the run ended by itself with " << status;
    EXPECT_EQ(disk_.entries(), 0);
    if (taken == 0) continue;
    ++with_file;
    EXPECT_TRUE(comes_back(before, taken / 2)) << "kill " << kill << ": " << taken << " bytes were taken";
  }
  EXPECT_GE(with_file, kKills / 2) << "hardly any run had a file when it was killed: the test shows little";
  int status = -1;
  ASSERT_GT(::waitpid(start("3"), &status, 0), 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(disk_.entries(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Kill, ::testing::Values(1, 2));

}  // namespace
}  // namespace tessera::testing
