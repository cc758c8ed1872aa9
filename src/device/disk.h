// A file for data that do not fit in memory. One lane reads and writes whole ranges of it. Owns the file,
// which has no name and is gone when the process ends, and the queue that moves blocks: io_uring, or threads
// if the build or the system has no io_uring. Knows nothing of buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/memory_plan.h"

namespace tessera::device {

// Offsets, lengths and addresses of a transfer are multiples of this, as every O_DIRECT requires.
inline constexpr std::int64_t kDiskAlignment = kBlockBytes;

struct DiskOptions {
  std::string directory;               // an existing directory on the disk to use
  std::int64_t bytes = 0;              // of the file, rounded up to 4096; at least 1
  std::int64_t block_bytes = 1 << 20;  // of one request; a multiple of 4096, up to 1 GiB
  int depth = 16;                      // requests in flight, 1 to 4096; without io_uring at most 4 threads
  bool io_uring = true;                // false: threads
};

class DiskFile;
class DiskQueue;

// Any thread may use it, one at a time.
class Disk {
 public:
  // Reserves all of the file's space. Throws UsageError for options outside the limits above, and
  // EnvironmentError naming the directory if it cannot be written or has less space than `bytes`.
  explicit Disk(const DiskOptions& options);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // Move `bytes` bytes between file and memory, and return when all is done. Bytes that were never written
  // read as zeros. Throw UsageError for a range outside the file or not aligned, and EnvironmentError naming
  // directory, offset and cause if the system fails. The target's contents in that range are then undefined.
  void read(std::int64_t offset, void* to, std::int64_t bytes);
  void write(std::int64_t offset, const void* from, std::int64_t bytes);

  // Lets the system map and lock this memory once instead of for each request. Other memory still works.
  // There is one range at a time: another call replaces it, and 0 bytes end it. End it before the memory is
  // given back. Only io_uring uses it, within the limit of locked memory; description() says if it was
  // refused.
  void register_memory(std::byte* base, std::int64_t bytes);

  // How blocks are moved, for a report: "io_uring, O_DIRECT, registered buffers", or what is used instead and
  // why.
  std::string description() const;
  std::int64_t bytes() const;
  std::int64_t read_bytes() const { return read_bytes_; }  // read so far
  std::int64_t written_bytes() const { return written_bytes_; }

 private:
  void check(const char* what, std::int64_t offset, const void* memory, std::int64_t bytes) const;

  std::unique_ptr<DiskFile> file_;
  std::unique_ptr<DiskQueue> queue_;  // ends before the file
  std::int64_t read_bytes_ = 0;
  std::int64_t written_bytes_ = 0;
};

}  // namespace tessera::device
