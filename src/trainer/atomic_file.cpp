#include "src/trainer/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tessera/error.h"

namespace tessera {

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), partial_path_(fmt::format("{}.{}.partial", path_, ::getpid())) {
  file_ = ::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) refuse(errno);
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(partial_path_.c_str());
}

void AtomicFile::refuse(int code) const {
  throw EnvironmentError(fmt::format("cannot write '{}': {}", path_, std::generic_category().message(code)));
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  write_at(end_, bytes);
  end_ += static_cast<std::int64_t>(bytes.size());
}

void AtomicFile::overwrite(std::int64_t offset, std::span<const std::byte> bytes) { write_at(offset, bytes); }

void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) refuse(written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
}

void AtomicFile::commit() {
  if (::fsync(file_) != 0) refuse(errno);
  // The destructor still removes the partial file where the rename fails.
  if (std::rename(partial_path_.c_str(), path_.c_str()) != 0) refuse(errno);
  const int closed = ::close(std::exchange(file_, -1));
  if (closed != 0) refuse(errno);
  // The rename is durable once the folder is; some file systems cannot sync folders, and that is no failure.
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  const int folder_file = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_file < 0) return;
  ::fsync(folder_file);
  ::close(folder_file);
}

}  // namespace tessera
