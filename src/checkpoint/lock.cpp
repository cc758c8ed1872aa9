// CheckpointLock: an flock() on a file in the folder, which ends with the process that holds it.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/lock.h"
#include "src/checkpoint/made_folders.h"
#include "tessera/checkpoint.h"
#include "tessera/machine.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

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

class FolderLock::Hold {
 public:
  Hold(const fs::path& folder, std::unique_ptr<MadeFolders> made, Flock flock);
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  const std::string& note() const { return note_; }
  // Whether the folder still has its file: it may have been removed, and made anew by another run.
  bool holds() const { return names(path_, file_); }
  bool claimed = false;

 private:
  [[noreturn]] void leave_to_holder(const fs::path& folder, int code);
  void sign();  // says in the file who holds it
  void release();

  fs::path path_;
  std::string note_;
  std::unique_ptr<MadeFolders> made_folders_;  // a run that was refused at its start leaves none
  int file_ = -1;
};

struct FolderLock::Holds {
  std::mutex mutex;  // also of claims, and of what holds release
  std::map<fs::path, std::weak_ptr<Hold>> of;
};

FolderLock::Holds& FolderLock::holds() {
  static Holds all;
  return all;
}

FolderLock::FolderLock(const fs::path& folder, Flock flock) {
  std::error_code error;
  auto made = std::make_unique<MadeFolders>(folder, error);
  if (error)
    throw EnvironmentError(
        fmt::format("cannot make checkpoint folder '{}': {}", folder.string(), std::strerror(error.value())));
  made->sync();
  const std::lock_guard lock(holds().mutex);
  std::weak_ptr<Hold>& known = holds().of[fs::canonical(folder)];  // by whatever name it is given
  hold_ = known.lock();
  if (!hold_ || !hold_->holds()) known = hold_ = std::make_shared<Hold>(folder, std::move(made), flock);
}

FolderLock::~FolderLock() {
  const std::lock_guard lock(holds().mutex);
  if (claims_) hold_->claimed = false;
  hold_.reset();
  std::erase_if(holds().of, [](const auto& one) { return one.second.expired(); });
}

const std::string& FolderLock::note() const { return hold_->note(); }

bool FolderLock::claim() {
  const std::lock_guard lock(holds().mutex);
  if (!hold_->claimed) hold_->claimed = claims_ = true;
  return claims_;
}

FolderLock::Hold::Hold(const fs::path& folder, std::unique_ptr<MadeFolders> made, Flock flock)
    : path_(folder / kLock), made_folders_(std::move(made)) {
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
  sign();
}

void FolderLock::Hold::leave_to_holder(const fs::path& folder, int code) {
  const std::string holder = read_holder(file_);
  ::close(std::exchange(file_, -1));
  if (code != EWOULDBLOCK) cannot_lock(path_, code);
  throw EnvironmentError(
      fmt::format("another run is saving into checkpoint folder '{}'{}; end it, or name another folder",
                  folder.string(), holder.empty() ? "" : ": " + holder));
}

void FolderLock::Hold::sign() {
  const std::string text = fmt::format("process {} on {}", ::getpid(), host_name());
  if (::ftruncate(file_, 0) == 0 && ::pwrite(file_, text.data(), text.size(), 0) >= 0) return;
  const int code = errno;
  release();
  cannot_lock(path_, code);
}

void FolderLock::Hold::release() {
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
