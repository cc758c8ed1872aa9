// One run saves into a folder, and all its ranks continue the same.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>

#include "src/checkpoint/lock.h"
#include "tests/checkpoint/toy_run.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::Flock;
using checkpoint::FolderLock;

// Another process that holds a folder until it is killed.
class Holder {
 public:
  explicit Holder(const fs::path& folder) {
    int ready[2] = {};
    EXPECT_EQ(::pipe(ready), 0);
    child_ = ::fork();
    if (child_ == 0) {
      const int file = ::open((folder / "lock").c_str(), O_RDWR | O_CREAT, 0644);
      if (::flock(file, LOCK_EX | LOCK_NB) == 0 && ::write(file, "process 7", 9) == 9 &&
          ::write(ready[1], "x", 1) == 1)
        for (;;) ::pause();
      ::_exit(1);
    }
    ::close(ready[1]);
    char word = 0;
    EXPECT_EQ(::read(ready[0], &word, 1), 1) << "the other process does not hold the folder";
    ::close(ready[0]);
  }
  ~Holder() { end(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  void end() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
};

template <class Work>
std::string error_or_none(const Work& work) {
  try {
    work();
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  return "";
}

class Lock : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  fs::path place_ = folder_.file("run");
};

TEST_F(Lock, AnotherRunIsRefusedUntilThisOneEnds) {
  const ToyRun run;
  save_three(run, place_);
  std::ofstream(place_ / "step-00000009.tmp") << "of the other run";
  Holder other(place_);
  IdVector<std::string> messages(2);
  run.run([&](Communicator ranks, Engine& engine) {
    messages[ranks.rank()] = error_or_none([&] { save_checkpoint(place_, ranks, engine, state_at(4)); });
    EXPECT_EQ(error_or_none([&] { CheckpointLock(place_, ranks); }), messages[ranks.rank()]);
    load_checkpoint(place_, ranks, engine);
  });
  EXPECT_EQ(messages[0], messages[1]);
  for (const char* part : {"another run is saving", "/run'", "process 7"})
    EXPECT_NE(messages[0].find(part), std::string::npos) << messages[0];
  EXPECT_TRUE(fs::exists(place_ / "step-00000009.tmp"));
  EXPECT_EQ(inspect_checkpoint(place_, true).state.step, 3);
  other.end();  // killed: its file stays, its hold does not
  EXPECT_TRUE(fs::exists(place_ / "lock"));
  run.run([&](Communicator ranks, Engine& engine) {
    const CheckpointLock lock(place_, ranks);
    EXPECT_EQ(lock.note(), "");
    save_checkpoint(place_, ranks, engine, state_at(4));  // which finds the process's own
    ranks.barrier();
    EXPECT_TRUE(fs::exists(place_ / "lock"));
    ranks.barrier();
  });
  EXPECT_FALSE(fs::exists(place_ / "lock"));
  EXPECT_FALSE(fs::exists(place_ / "step-00000009.tmp"));
}

TEST_F(Lock, LeavesNoFolderThatItMade) {
  { const CheckpointLock lock(place_); }
  EXPECT_FALSE(fs::exists(place_));
  fs::create_directories(place_);
  { const CheckpointLock lock(place_); }
  EXPECT_TRUE(fs::exists(place_));
  std::ofstream(folder_.file("file")) << "in the way";
  EXPECT_NE(error_or_none([&] { CheckpointLock(folder_.file("file/run")); }).find("Not a directory"),
            std::string::npos);
}

// A hold on a folder that was removed is none on the one that was made in its place.
TEST_F(Lock, IsOfTheFolderThatIsThere) {
  const FolderLock first(place_);
  fs::remove_all(place_);
  {
    const FolderLock again(place_);
    EXPECT_TRUE(fs::exists(place_ / "lock"));
  }
  fs::remove_all(place_);
  fs::create_directories(place_);
  Holder other(place_);
  EXPECT_NE(error_or_none([&] { FolderLock(place_, ::flock); }).find("another run is saving"),
            std::string::npos);
}

// Of two in a process either may go first; the folder is held as long as one of them is there.
TEST_F(Lock, IsSharedWithinAProcess) {
  const auto held = [&] {
    const int file = ::open((place_ / "lock").c_str(), O_RDWR);
    const bool is = file >= 0 && ::flock(file, LOCK_EX | LOCK_NB) != 0;
    ::close(file);
    return is;
  };
  for (const bool first_goes : {true, false}) {
    std::optional<CheckpointLock> first(place_), second(place_ / "");
    EXPECT_TRUE(held());
    (first_goes ? first : second).reset();
    EXPECT_TRUE(held());
    EXPECT_TRUE(fs::exists(place_ / "lock"));
    first.reset();
    second.reset();
    EXPECT_FALSE(held());
    EXPECT_FALSE(fs::exists(place_ / "lock"));
  }
  // So it is with a save that goes on behind its lock.
  ToyRun{}.run([&](Communicator ranks, Engine& engine) {
    std::optional<CheckpointLock> lock;
    lock.emplace(place_, ranks);
    PendingCheckpoint saving = begin_checkpoint(place_, ranks, engine, state_at(1));
    lock.reset();
    ranks.barrier();
    EXPECT_TRUE(held());
    saving.finish();
    ranks.barrier();
    EXPECT_FALSE(held());
  });
}

TEST_F(Lock, GoesOnWhereTheFileSystemHasNone) {
  for (const int code : {ENOLCK, EOPNOTSUPP, ENOSYS}) {
    static int refusal;
    refusal = code;
    const Flock lacking = [](int, int) { return errno = refusal, -1; };
    const FolderLock lock(place_, lacking);
    EXPECT_NE(lock.note().find("cannot be locked"), std::string::npos) << lock.note();
    EXPECT_NE(lock.note().find("/run"), std::string::npos) << lock.note();
  }
  const Flock failing = [](int, int) { return errno = EIO, -1; };
  EXPECT_NE(error_or_none([&] { FolderLock(place_, failing); }).find("Input/output"), std::string::npos);
}

TEST_F(Lock, WhatIsContinuedIsOneDecision) {
  save_three(ToyRun{}, place_);
  const auto found = [&](const fs::path& on_first, const fs::path& on_second) {
    IdVector<std::string> results(2);
    run_local(2, {}, [&](Communicator ranks) {
      std::string& result = results[ranks.rank()];
      const std::string error = error_or_none([&] {
        const auto newest = latest_checkpoint(ranks.rank() == 0 ? on_first : on_second, ranks);
        result = newest ? newest->filename().string() : "none";
      });
      if (!error.empty()) result = error;
    });
    EXPECT_EQ(results[0], results[1]);
    return results[0];
  };
  EXPECT_EQ(found(place_, place_), "step-00000003");
  EXPECT_EQ(found(place_ / "step-00000003", place_ / "step-00000003"), "step-00000003");
  EXPECT_EQ(found(folder_.file("none"), place_), "none");
  const std::string unseen = found(place_, folder_.file("none"));
  EXPECT_NE(unseen.find("rank 1 finds no checkpoint"), std::string::npos) << unseen;
  std::ofstream(folder_.file("file")) << "in the way";
  EXPECT_NE(found(folder_.file("file"), place_).find("Not a directory"), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
