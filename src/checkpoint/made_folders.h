// Makes the folders for files that are to be written, and removes them again if nothing was written.
#pragma once

#include <filesystem>
#include <system_error>

namespace tessera::checkpoint {

class MadeFolders {
 public:
  // Makes `folder` and all missing folders above it. If that fails, `error` says why, and none of them stays.
  MadeFolders(const std::filesystem::path& folder, std::error_code& error);
  // Makes the new folders survive a power failure. Throws EnvironmentError as sync_folder() does.
  void sync() const;
  // Removes the new folders that are empty.
  ~MadeFolders();
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

 private:
  std::filesystem::path folder_;
  int made_ = 0;  // number of folders made: folder_, the one above it, and so on
};

}  // namespace tessera::checkpoint
