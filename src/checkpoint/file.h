// One file of a checkpoint or of weights: written and synced, or read at offsets.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "tessera/memory_plan.h"

namespace tessera::checkpoint {

// The pwrite(2) and pread(2) of every file. Tests replace them.
using Pwrite = ssize_t (*)(int, const void*, std::size_t, off_t);
using Pread = ssize_t (*)(int, void*, std::size_t, off_t);
extern std::atomic<Pwrite> file_pwrite;
extern std::atomic<Pread> file_pread;

// Writes one file. Every member throws EnvironmentError with path, bytes and the system's reason.
//
// Long writes bypass the system's cache if the file system can (O_DIRECT). Through the cache they would cost
// a core's time for every page, displace data that are read again, such as training data, and be waited for
// at the end.
class FileWriter {
 public:
  // Creates the file and reserves its bytes, so that a full disk is noticed before anything is written.
  // `kind` names the file in errors; it must be a literal.
  FileWriter(std::filesystem::path path, std::int64_t bytes, const char* kind = "checkpoint");
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Writes at an offset within the reserved bytes. Bytes that are never written are zeros.
  void write_at(std::int64_t offset, std::span<const std::byte> data);
  // Everything written so far is on the disk when this returns.
  void sync();
  // Everything is on the disk when this returns. Nothing can be written after it.
  void finish();

 private:
  // Writes whole blocks from `offset` on. Returns the number of bytes that it could write.
  std::int64_t write_blocks(std::int64_t offset, std::span<const std::byte> data);
  void write_cached(std::int64_t offset, std::span<const std::byte> data);
  [[noreturn]] void refuse(const char* what, int code) const;

  std::filesystem::path path_;
  std::int64_t bytes_;
  const char* kind_;
  std::int64_t written_ = 0;  // bytes so far, for errors
  int file_ = -1;
  int direct_file_ = -1;  // the same file, past the cache, in blocks of kBlockBytes; −1 if not used
  std::unique_ptr<std::byte, void (*)(void*)> blocks_;  // buffer for direct_file_
};

// Identifies a file and its contents: it differs for a file that takes its place, and after a change.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t bytes = 0;
  std::int64_t changed_ns = 0;  // when its contents were changed

  bool operator==(const FileIdentity&) const = default;
};

class FileReader {
 public:
  explicit FileReader(std::filesystem::path path, const char* kind = "checkpoint");
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t bytes() const { return identity_.bytes; }
  const FileIdentity& identity() const { return identity_; }  // as it was when it was opened
  void read(std::int64_t offset, std::span<std::byte> data) const;

 private:
  std::filesystem::path path_;
  const char* kind_;
  FileIdentity identity_;
  int file_ = -1;
};

// Makes a rename or a new file in `folder` survive a power failure.
void sync_folder(const std::filesystem::path& folder);

// Gives a finished file its name, and replaces a file of that name. `kind` as above.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to,
                 const char* kind = "checkpoint");

// Replaces `path` by a file with this text. A reader sees the old file or the new one.
void replace_text(const std::filesystem::path& path, const std::string& text);

}  // namespace tessera::checkpoint
