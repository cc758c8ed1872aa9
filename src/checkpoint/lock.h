// One run's hold on a folder of checkpoints, by one process.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace tessera::checkpoint {

inline constexpr const char* kLock = "lock";

// flock(2); another one in tests.
using Flock = int (*)(int, int);
Flock system_flock();

// See CheckpointLock. Those of a process share its hold, which lasts as long as one of them.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder, Flock flock = system_flock());
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::string& note() const;
  // For one of them at a time, until it goes: false where another has claimed the folder.
  bool claim();

 private:
  class Hold;
  struct Holds;
  static Holds& holds();  // of this process

  std::shared_ptr<Hold> hold_;
  bool claims_ = false;
};

}  // namespace tessera::checkpoint
