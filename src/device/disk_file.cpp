#include "src/device/disk_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "src/device/disk.h"
#include "src/device/size_text.h"
#include "tessera/error.h"

namespace tessera::device {
namespace {

constexpr int kMostStalls = 64;

std::string text_of(int code) { return std::generic_category().message(code); }

// A file without a name; negative, with errno, where the directory takes none.
int open_unnamed(const std::string& directory) {
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  std::string path = directory + "/tessera.XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) unlink(path.c_str());
  return named;
}

bool is_of_memory(const struct statfs& system) {
  return system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
}

}  // namespace

bool is_of_memory(const std::string& directory) {
  struct statfs system {};
  return statfs(directory.c_str(), &system) == 0 && is_of_memory(system);
}

std::optional<DiskRoom> room_in(const std::string& directory) {
  struct statvfs space {};
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0 || statvfs(directory.c_str(), &space) != 0) return std::nullopt;
  if (space.f_blocks == 0) return std::nullopt;  // it does not say: it may be made as it is used
  return DiskRoom{.system = static_cast<std::uint64_t>(status.st_dev),
                  .free_bytes = static_cast<std::int64_t>(space.f_bavail * space.f_frsize)};
}

void refuse_full(const std::string& directory, std::int64_t bytes, int ranks, std::int64_t free_bytes) {
  const std::int64_t missing = bytes - free_bytes;
  const std::string whose = ranks > 1 ? fmt::format(" of {} ranks", ranks) : "";
  throw EnvironmentError(
      fmt::format("cannot keep {} bytes ({}){} in directory '{}': {} bytes ({}) are free there, {} bytes "
                  "({}) are missing; make room, or name a directory on another disk",
                  bytes, size_text(bytes), whose, directory, free_bytes, size_text(free_bytes), missing,
                  size_text(missing)));
}

Transfer Transfer::block(std::int64_t done, std::int64_t block_bytes) const {
  return {.write = write,
          .offset = offset + done,
          .memory = memory + done,
          .bytes = std::min(block_bytes, bytes - done)};
}

DiskFile::DiskFile(const std::string& directory, std::int64_t bytes)
    : directory_(directory), bytes_(bytes), descriptor_(open_unnamed(directory)) {
  if (descriptor_ < 0)
    throw EnvironmentError(fmt::format(
        "cannot keep a file in directory '{}': {}; name an existing directory that may be written", directory,
        text_of(errno)));
  try {
    go_direct();
    reserve();
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

DiskFile::~DiskFile() {
  // The kernel may hold a ring's file for a moment longer; its space goes back now, or with the file.
  [[maybe_unused]] const int code = ftruncate(descriptor_, 0);
  close(descriptor_);
}

void DiskFile::go_direct() {
  const bool direct = fcntl(descriptor_, F_SETFL, O_DIRECT) == 0;
  description_ = direct ? "O_DIRECT" : fmt::format("buffered (O_DIRECT refused: {})", text_of(errno));
  struct statfs system {};
  if (fstatfs(descriptor_, &system) == 0 && is_of_memory(system))
    description_ += fmt::format(", in memory (the directory's file system is {})",
                                system.f_type == TMPFS_MAGIC ? "tmpfs" : "ramfs");
}

// All of it now: a write that finds the disk full in the middle of a run would end the run.
void DiskFile::reserve() {
  const auto check_free = [&] {
    if (const auto room = room_in(directory_); room && room->free_bytes < bytes_)
      refuse_full(directory_, bytes_, 1, room->free_bytes);
  };
  // Asked first, because fallocate fills the disk before it says that it is full.
  check_free();
  int code = 0;
  do code = fallocate(descriptor_, 0, 0, bytes_) == 0 ? 0 : errno;
  while (code == EINTR);
  if (code == EOPNOTSUPP || code == ENOSYS) {
    description_ += fmt::format(", space not reserved (fallocate: {})", text_of(code));
    code = ftruncate(descriptor_, bytes_) == 0 ? 0 : errno;
  }
  if (code == 0) return;
  [[maybe_unused]] const int given_back = ftruncate(descriptor_, 0);
  check_free();
  const char* const more = code == ENOSPC  ? ", though there seemed to be room: others fill it meanwhile"
                           : code == EFBIG ? ": the file system's limit, or the process's (ulimit -f)"
                                           : "";
  throw EnvironmentError(fmt::format("cannot keep {} bytes ({}) in directory '{}': {}{}", bytes_,
                                     size_text(bytes_), directory_, text_of(code), more));
}

void DiskFile::advance(Transfer& rest, std::int64_t result) const {
  // With O_DIRECT a rest has to begin at a boundary, so a part of one is moved again.
  if (result < 0) refuse(rest, text_of(static_cast<int>(-result)));
  const std::int64_t moved = result / kDiskAlignment * kDiskAlignment;
  if (moved > 0) {
    rest = rest.block(moved, rest.bytes);
    return;
  }
  // Little may be moved before an error, which the next request then meets.
  if (result == 0 || ++rest.stalls == kMostStalls)
    refuse(rest, fmt::format("{} were moved{}", result,
                             result > 0 ? fmt::format(", and no more in {} requests", rest.stalls) : ""));
}

void DiskFile::refuse(const Transfer& rest, const std::string& why) const {
  throw EnvironmentError(fmt::format("cannot {} {} bytes at offset {} of the file in directory '{}': {}",
                                     rest.write ? "write" : "read", rest.bytes, rest.offset, directory_,
                                     why));
}

}  // namespace tessera::device
