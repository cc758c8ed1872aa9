#include "src/checkpoint/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

constexpr std::int64_t kLargestCall = std::int64_t{1} << 30;      // the kernel takes just under 2 GiB at once
constexpr std::int64_t kMostDirectBytes = std::int64_t{4} << 20;  // of a call
// Of fewer bytes a wait for the disk would be the most.
constexpr std::int64_t kLeastDirectBytes = std::int64_t{1} << 18;

std::string reason(int code) { return std::strerror(code); }

// A signal that came meanwhile, as one that asks the run to end, is no failure of the call.
template <class Call>
int uninterrupted(const Call& call) {
  int result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

std::atomic<Pwrite> file_pwrite = ::pwrite;
std::atomic<Pread> file_pread = ::pread;

FileWriter::FileWriter(std::filesystem::path path, std::int64_t bytes, const char* kind)
    : path_(std::move(path)), bytes_(bytes), kind_(kind), blocks_(nullptr, std::free) {
  file_ = uninterrupted([&] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); });
  if (file_ < 0) refuse("create", errno);
  // Not posix_fallocate: where the file system cannot reserve, that writes every block.
  if (uninterrupted([&] { return ::fallocate(file_, 0, 0, bytes_); }) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    const int code = errno;
    ::close(file_);
    file_ = -1;
    refuse("reserve", code);
  }
  if (bytes_ >= kLeastDirectBytes)
    direct_file_ = uninterrupted([&] { return ::open(path_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC); });
}

FileWriter::~FileWriter() {
  if (file_ >= 0) ::close(file_);
  if (direct_file_ >= 0) ::close(direct_file_);
}

void FileWriter::refuse(const char* what, int code) const {
  throw EnvironmentError(fmt::format("cannot {} {} file '{}' ({} of {} bytes written): {}", what, kind_,
                                     path_.string(), written_, bytes_, reason(code)));
}

void FileWriter::write_at(std::int64_t offset, std::span<const std::byte> data) {
  const auto bytes = static_cast<std::int64_t>(data.size());
  const std::int64_t first = round_up(offset, kBlockBytes) - offset;
  const std::int64_t last = (offset + bytes) / kBlockBytes * kBlockBytes - offset;
  if (direct_file_ < 0 || last - first < kLeastDirectBytes) return write_cached(offset, data);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  write_cached(offset, part(0, first));
  const std::int64_t done = first + write_blocks(offset + first, part(first, last));
  write_cached(offset + done, part(done, bytes));
}

std::int64_t FileWriter::write_blocks(std::int64_t offset, std::span<const std::byte> data) {
  if (!blocks_) blocks_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kMostDirectBytes)));
  if (!blocks_) throw std::bad_alloc();
  std::int64_t done = 0;
  while (done < static_cast<std::int64_t>(data.size())) {
    const auto part = data.subspan(static_cast<std::size_t>(done));
    const std::size_t bytes = std::min<std::size_t>(part.size(), kMostDirectBytes);
    std::memcpy(blocks_.get(), part.data(), bytes);
    const ssize_t moved = file_pwrite.load()(direct_file_, blocks_.get(), bytes, offset + done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && errno != EINVAL) refuse("write", errno);
    // It wants blocks of another size after all, or wrote a part of one: the cache takes any.
    if (moved <= 0 || moved % kBlockBytes != 0) {
      ::close(std::exchange(direct_file_, -1));
      return done;
    }
    written_ += moved;
    done += moved;
  }
  return done;
}

void FileWriter::write_cached(std::int64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t done =
        file_pwrite.load()(file_, data.data(), std::min<std::size_t>(data.size(), kLargestCall), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) refuse("write", errno);
    written_ += done;
    offset += done;
    data = data.subspan(static_cast<std::size_t>(done));
  }
}

void FileWriter::sync() {
  if (uninterrupted([&] { return ::fsync(file_); }) != 0) refuse("sync", errno);
}

void FileWriter::finish() {
  sync();
  if (direct_file_ >= 0) ::close(std::exchange(direct_file_, -1));
  const int closed = ::close(std::exchange(file_, -1));
  if (closed != 0 && errno != EINTR) refuse("close", errno);  // what is closed may not be closed again
}

FileReader::FileReader(std::filesystem::path path, const char* kind) : path_(std::move(path)), kind_(kind) {
  // Non-blocking, so that a named pipe is refused below rather than waited for.
  file_ = uninterrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  struct stat status {};
  std::string why_not;
  if (file_ < 0 || ::fstat(file_, &status) != 0)
    why_not = reason(errno);
  else if (!S_ISREG(status.st_mode))
    why_not = S_ISDIR(status.st_mode) ? reason(EISDIR) : "it is not a regular file";
  identity_ = {.device = status.st_dev,
               .inode = status.st_ino,
               .bytes = status.st_size,
               .changed_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
  if (why_not.empty()) return;
  if (file_ >= 0) ::close(file_);
  throw EnvironmentError(fmt::format("cannot open {} file '{}': {}", kind_, path_.string(), why_not));
}

FileReader::~FileReader() { ::close(file_); }

void FileReader::read(std::int64_t offset, std::span<std::byte> data) const {
  while (!data.empty()) {
    const std::size_t part = std::min<std::size_t>(data.size(), kLargestCall);
    const ssize_t done = file_pread.load()(file_, data.data(), part, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0)
      throw EnvironmentError(fmt::format("cannot read {} bytes at offset {} of {} file '{}': {}", data.size(),
                                         offset, kind_, path_.string(),
                                         done == 0 ? "it ends there" : reason(errno)));
    offset += done;
    data = data.subspan(static_cast<std::size_t>(done));
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const int file = uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  // Some file systems refuse to sync a folder; they keep the order of renames by themselves.
  const bool synced =
      file >= 0 && (uninterrupted([&] { return ::fsync(file); }) == 0 || errno == EINVAL || errno == ENOTSUP);
  const int code = errno;
  if (file >= 0) ::close(file);
  if (!synced)
    throw EnvironmentError(
        fmt::format("cannot sync checkpoint folder '{}': {}", folder.string(), reason(code)));
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to, const char* kind) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error)
    throw EnvironmentError(fmt::format("cannot write {} file '{}': {}", kind, to.string(), error.message()));
}

void replace_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::path partial = path;
  partial += ".tmp";
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  FileWriter writer(partial, static_cast<std::int64_t>(text.size()));
  writer.write_at(0, std::as_bytes(std::span(text)));
  writer.finish();
  rename_file(partial, path);
}

}  // namespace tessera::checkpoint
