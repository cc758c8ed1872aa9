// One file on the disk, of a checkpoint or of weights: written and synced, or read at offsets. POSIX only
// here.
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

// pwrite(2), of every file; another one in tests.
using Pwrite = ssize_t (*)(int, const void*, std::size_t, off_t);
extern std::atomic<Pwrite> file_pwrite;

// EnvironmentError with path, bytes and the system's reason from every member.
//
// Long writes go past the system's cache where the file system can (O_DIRECT): through it they cost a core's
// time for every page, take the place of what is read again, as training data, and are waited for at the end.
class FileWriter {
 public:
  // Creates the file and reserves its bytes, so that a full disk is noticed before anything is written.
  // `kind` names it in errors; a literal.
  FileWriter(std::filesystem::path path, std::int64_t bytes, const char* kind = "checkpoint");
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // At an offset within the reserved bytes, of which those that nothing is written to are zeros.
  void write_at(std::int64_t offset, std::span<const std::byte> data);
  // What is written by now is on the disk when this returns.
  void sync();
  // Everything is on the disk when this returns. Nothing can be written after it.
  void finish();

 private:
  // Of the bytes from `offset` on, all whole blocks, those that it could write.
  std::int64_t write_blocks(std::int64_t offset, std::span<const std::byte> data);
  void write_cached(std::int64_t offset, std::span<const std::byte> data);
  [[noreturn]] void refuse(const char* what, int code) const;

  std::filesystem::path path_;
  std::int64_t bytes_;
  const char* kind_;
  std::int64_t written_ = 0;  // bytes, for errors
  int file_ = -1;
  int direct_file_ = -1;  // the same, past the cache, in blocks of kBlockBytes; −1 where that is not to be
  std::unique_ptr<std::byte, void (*)(void*)> blocks_;  // on their way there
};

// Tells a file from the one that takes its place, and from what it is after a change.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t bytes = 0;
  std::int64_t changed_ns = 0;  // when its contents were

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
  const FileIdentity& identity() const { return identity_; }  // when it was opened
  void read(std::int64_t offset, std::span<std::byte> data) const;

 private:
  std::filesystem::path path_;
  const char* kind_;
  FileIdentity identity_;
  int file_ = -1;
};

// Makes a rename or a new file in `folder` survive a power failure.
void sync_folder(const std::filesystem::path& folder);

// Gives a finished file its name, which may be another's. `kind` as above.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to,
                 const char* kind = "checkpoint");

// Replaces `path` by a file with this text: a reader sees the old or the new one.
void replace_text(const std::filesystem::path& path, const std::string& text);

}  // namespace tessera::checkpoint
