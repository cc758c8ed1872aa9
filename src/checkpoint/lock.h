// One process's lock on a folder of checkpoints.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace tessera::checkpoint {

inline constexpr const char* kLock = "lock";

// flock(2). Tests pass another function.
using Flock = int (*)(int, int);
Flock system_flock();

// See CheckpointLock. All FolderLocks of a process share one hold on a folder, which lasts until the last of
// them is destroyed.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder, Flock flock = system_flock());
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::string& note() const;
  // Claims the folder until this object is destroyed. False if another FolderLock has claimed it.
  bool claim();

 private:
  class Hold;
  struct Holds;
  static Holds& holds();  // of this process

  std::shared_ptr<Hold> hold_;
  bool claims_ = false;
};

}  // namespace tessera::checkpoint
