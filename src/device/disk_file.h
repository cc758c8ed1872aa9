// The file of a Disk, and the text of its errors. Owns the descriptor and the space; moves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tessera::device {

// A range of the file and the memory that it is read into or, with `write`, written from.
struct Transfer {
  bool write = false;
  std::int64_t offset = 0;
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
  int stalls = 0;  // requests in a row that moved something, but less than one aligned block

  // The block that begins `done` bytes after the start: `block_bytes` long, or what is left.
  Transfer block(std::int64_t done, std::int64_t block_bytes) const;
};

// The free space on a directory's file system.
struct DiskRoom {
  std::uint64_t system = 0;  // identifies the file system on this host
  std::int64_t free_bytes = 0;
};
std::optional<DiskRoom> room_in(const std::string& directory);

// Whether a directory's file system keeps its files in memory (tmpfs, ramfs).
bool is_of_memory(const std::string& directory);

// Throws EnvironmentError that says how much space is missing for `bytes`, the sum over `ranks` ranks.
[[noreturn]] void refuse_full(const std::string& directory, std::int64_t bytes, int ranks,
                              std::int64_t free_bytes);

class DiskFile {
 public:
  // `bytes` is a multiple of 4096.
  DiskFile(const std::string& directory, std::int64_t bytes);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::int64_t bytes() const { return bytes_; }
  const std::string& description() const {
    return description_;
  }  // "O_DIRECT" or "buffered", and what the
     // system lacks

  // Removes from `rest` the whole blocks of 4096 bytes that a request has moved; the rest is requested again.
  // `result` is the bytes moved or a negative errno. Throws EnvironmentError for an error, if nothing was
  // moved, or if too many requests in a row moved less than a block.
  void advance(Transfer& rest, std::int64_t result) const;
  // Throws EnvironmentError that says what could not be moved, where, and why.
  [[noreturn]] void refuse(const Transfer& rest, const std::string& why) const;

 private:
  void reserve();
  void go_direct();

  std::string directory_;
  std::int64_t bytes_;
  int descriptor_;
  std::string description_;
};

}  // namespace tessera::device
