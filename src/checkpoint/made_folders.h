// Folders that are made for what is to be written, and go again where nothing was.
#pragma once

#include <filesystem>
#include <system_error>

namespace tessera::checkpoint {

class MadeFolders {
 public:
  // Makes `folder` and all above it that are missing. Where that fails, `error` says why, and none stays.
  MadeFolders(const std::filesystem::path& folder, std::error_code& error);
  // Makes those that it made survive a power failure. EnvironmentError as sync_folder().
  void sync() const;
  // Removes those that it made and that hold nothing.
  ~MadeFolders();
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

 private:
  std::filesystem::path folder_;
  int made_ = 0;  // it, the one above it, and so on
};

}  // namespace tessera::checkpoint
