#include "src/checkpoint/made_folders.h"

#include <unistd.h>

#include <cerrno>

#include "src/checkpoint/file.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

// Without a slash at its end, which would be a part of its own.
fs::path own_path(const fs::path& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

MadeFolders::MadeFolders(const fs::path& folder, std::error_code& error) : folder_(own_path(folder)) {
  for (fs::path at = folder_; !fs::exists(at, error) && at.has_relative_path(); at = at.parent_path())
    ++made_;
  fs::create_directories(folder, error);
}

void MadeFolders::sync() const {
  fs::path at = folder_;
  for (int i = 0; i < made_; ++i) {
    at = at.parent_path();
    // One that may be written and not read cannot be opened for it.
    if (::access(at.c_str(), R_OK) == 0) sync_folder(at);
  }
}

MadeFolders::~MadeFolders() {
  for (fs::path at = folder_; made_ > 0; --made_, at = at.parent_path())
    if (::rmdir(at.c_str()) != 0 && errno != ENOENT) return;  // as one is that holds something
}

}  // namespace tessera::checkpoint
