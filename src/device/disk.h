// A file that holds what does not fit in memory, moved in whole ranges by one lane. Owns the file, which has
// no name and ends with the process, and what moves blocks: io_uring, or threads where the build or the
// system has none. Knows nothing of buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/memory_plan.h"

namespace tessera::device {

// Offsets, lengths and addresses of a transfer are multiples of this: what any O_DIRECT asks for.
inline constexpr std::int64_t kDiskAlignment = kBlockBytes;

struct DiskOptions {
  std::string directory;               // an existing one on the disk to use
  std::int64_t bytes = 0;              // of the file, rounded up to 4096; at least 1
  std::int64_t block_bytes = 1 << 20;  // of one request; a multiple of 4096, up to 1 GiB
  int depth = 16;                      // requests in flight, 1 to 4096; without io_uring at most 4 threads
  bool io_uring = true;                // false: threads
};

class DiskFile;
class DiskQueue;

// One thread at a time uses it, any of them.
class Disk {
 public:
  // Takes all of the file's space. UsageError for options outside the limits above; EnvironmentError, which
  // names the directory, where it cannot be written or has less space than `bytes`.
  explicit Disk(const DiskOptions& options);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // Move `bytes` between file and memory and return when all is done; what was never written reads as
  // zeros. UsageError for a range outside the file, or one that is not aligned. EnvironmentError naming
  // directory, offset and cause where the system fails: the memory's, or the file's, content is then
  // undefined in that range.
  void read(std::int64_t offset, void* to, std::int64_t bytes);
  void write(std::int64_t offset, const void* from, std::int64_t bytes);

  // Lets the kernel map and lock this memory once instead of in each request; other memory still works. One
  // range at a time: another call replaces it, and 0 bytes end it. It ends before the memory is given back.
  // Only io_uring makes use of it, within the limit of locked memory; description() says when it was refused.
  void register_memory(std::byte* base, std::int64_t bytes);

  // How blocks move, for a report: "io_uring, O_DIRECT, registered buffers", or what is used and why.
  std::string description() const;
  std::int64_t bytes() const;
  std::int64_t read_bytes() const { return read_bytes_; }  // moved so far
  std::int64_t written_bytes() const { return written_bytes_; }

 private:
  void check(const char* what, std::int64_t offset, const void* memory, std::int64_t bytes) const;

  std::unique_ptr<DiskFile> file_;
  std::unique_ptr<DiskQueue> queue_;  // ends before the file
  std::int64_t read_bytes_ = 0;
  std::int64_t written_bytes_ = 0;
};

}  // namespace tessera::device
