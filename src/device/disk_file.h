// The file behind a Disk and the text of its errors. Owns the descriptor and the space; moves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tessera::device {

// A range of the file and the memory it goes to, or comes from where `write`.
struct Transfer {
  bool write = false;
  std::int64_t offset = 0;
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
  int stalls = 0;  // requests in a row that moved something, but less than may be moved by itself

  // The block that begins `done` bytes behind the start.
  Transfer block(std::int64_t done, std::int64_t block_bytes) const;
};

// What is free on the file system that a directory is of; nothing where that cannot be told.
struct DiskRoom {
  std::uint64_t system = 0;  // which one, on this host
  std::int64_t free_bytes = 0;
};
std::optional<DiskRoom> room_in(const std::string& directory);

// Whether the file system that a directory is of keeps its files in memory (tmpfs, ramfs).
bool is_of_memory(const std::string& directory);

// EnvironmentError with what is missing: `ranks` would keep so many bytes there together.
[[noreturn]] void refuse_full(const std::string& directory, std::int64_t bytes, int ranks,
                              std::int64_t free_bytes);

class DiskFile {
 public:
  // `bytes`: a multiple of 4096.
  DiskFile(const std::string& directory, std::int64_t bytes);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::int64_t bytes() const { return bytes_; }
  const std::string& description() const { return description_; }  // "O_DIRECT", and what the system lacks

  // Takes what a request has moved, or its negative errno, off `rest`, which is asked for again: of less than
  // 4096 bytes all of it. EnvironmentError where that is an error, or nothing, or little again and again.
  void advance(Transfer& rest, std::int64_t result) const;
  // EnvironmentError: what could not be moved, where, and why.
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
