// A file that appears under its name completely or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tessera {

// Written as "<path>.<pid>.partial" in the same folder. commit() syncs it to the disk and renames it. Without
// commit() the partial file is removed, and an earlier file at `path` stays. Every failure throws
// EnvironmentError naming the path and the system's reason; the object can then only be destroyed.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::span<const std::byte> bytes);
  // Overwrites bytes that were appended before, from `offset` on.
  void overwrite(std::int64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void refuse(int code) const;
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);

  std::string path_;
  std::string partial_path_;
  int file_ = -1;
  std::int64_t end_ = 0;
};

}  // namespace tessera
