// One run's hold on a folder of checkpoints, by one process.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "src/checkpoint/made_folders.h"

namespace tessera::checkpoint {

inline constexpr const char* kLock = "lock";

// flock(2); another one in tests.
using Flock = int (*)(int, int);
Flock system_flock();

// See CheckpointLock. Holds nothing, and refuses nothing, where this process holds the folder already.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder, Flock flock = system_flock());
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::string& note() const { return note_; }

 private:
  void leave_to_holder(const std::filesystem::path& folder, int code);
  void sign();  // says in the file who holds it
  void release();

  std::filesystem::path path_;
  std::string note_;
  std::optional<MadeFolders> made_folders_;  // a run that was refused at its start leaves none
  int file_ = -1;
};

}  // namespace tessera::checkpoint
