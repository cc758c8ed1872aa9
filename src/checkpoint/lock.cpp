// CheckpointLock: an flock() on a file in the folder, which ends with the process that holds it.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/lock.h"
#include "tessera/checkpoint.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// What the lock's file says of its holder: this process, as no other one is named.
const std::string& this_process() {
  static const std::string text = [] {
    std::random_device random;
    return fmt::format("process {} on {} ({:08x})", ::getpid(), host_name(), random());
  }();
  return text;
}

[[noreturn]] void cannot_lock(const fs::path& path, int code) {
  throw EnvironmentError(
      fmt::format("cannot lock checkpoint folder by '{}': {}", path.string(), std::strerror(code)));
}

std::string read_holder(int file) {
  std::array<char, 512> text{};
  const ssize_t bytes = ::pread(file, text.data(), text.size(), 0);
  return bytes > 0 ? std::string(text.data(), static_cast<std::size_t>(bytes)) : "";
}

// Whether the path still names this file: a holder removes it as it goes.
bool names(const fs::path& path, int file) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

int open_lock(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) cannot_lock(path, errno);
  return file;
}

}  // namespace

namespace checkpoint {

Flock system_flock() { return ::flock; }

FolderLock::FolderLock(const fs::path& folder, Flock flock) : path_(folder / kLock) {
  std::error_code error;
  made_folders_.emplace(folder, error);
  if (error)
    throw EnvironmentError(
        fmt::format("cannot make checkpoint folder '{}': {}", folder.string(), std::strerror(error.value())));
  int code = EINTR;
  // Again where the holder went meanwhile, and its file with it.
  while (code == EINTR) {
    file_ = open_lock(path_);
    code = flock(file_, LOCK_EX | LOCK_NB) != 0 ? errno : names(path_, file_) ? 0 : EINTR;
    if (code == EINTR) ::close(std::exchange(file_, -1));
  }
  if (code == ENOLCK || code == EOPNOTSUPP || code == ENOSYS)
    note_ = fmt::format("'{}' cannot be locked ({}): see that no other run saves there", folder.string(),
                        std::strerror(code));
  else if (code != 0)
    leave_to_holder(folder, code);
  if (file_ >= 0) sign();
}

// Another one holds it; which is no error where that is this process.
void FolderLock::leave_to_holder(const fs::path& folder, int code) {
  const std::string holder = read_holder(file_);
  ::close(std::exchange(file_, -1));
  if (code != EWOULDBLOCK) cannot_lock(path_, code);
  if (holder == this_process()) return;
  throw EnvironmentError(
      fmt::format("another run is saving into checkpoint folder '{}'{}; end it, or name another folder",
                  folder.string(), holder.empty() ? "" : ": " + holder));
}

void FolderLock::sign() {
  const std::string& text = this_process();
  if (::ftruncate(file_, 0) == 0 && ::pwrite(file_, text.data(), text.size(), 0) >= 0) return;
  const int code = errno;
  release();
  cannot_lock(path_, code);
}

FolderLock::~FolderLock() { release(); }

void FolderLock::release() {
  if (file_ < 0) return;
  std::error_code ignored;
  if (names(path_, file_)) fs::remove(path_, ignored);  // while it is held
  ::close(std::exchange(file_, -1));
}

}  // namespace checkpoint

CheckpointLock::CheckpointLock(const fs::path& folder, Communicator world) {
  together(world, "checkpoint lock", [&] {
    if (!world || world.rank() == 0) lock_ = std::make_unique<FolderLock>(folder);
  });
}

CheckpointLock::CheckpointLock() = default;
CheckpointLock::CheckpointLock(CheckpointLock&&) noexcept = default;
CheckpointLock& CheckpointLock::operator=(CheckpointLock&&) noexcept = default;
CheckpointLock::~CheckpointLock() = default;

std::string CheckpointLock::note() const { return lock_ ? lock_->note() : ""; }

}  // namespace tessera
