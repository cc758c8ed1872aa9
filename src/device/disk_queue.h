// What moves a Disk's blocks: several requests at a time. Two kinds, chosen when a Disk is made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/device/disk_file.h"

namespace tessera::device {

class DiskQueue {
 public:
  virtual ~DiskQueue() = default;

  // Cuts it into blocks and returns when none is in flight. Throws the error of the first that failed.
  virtual void move(const Transfer& transfer) = 0;
  virtual void register_memory(std::byte* /*base*/, std::int64_t /*bytes*/) {}
  virtual std::string description() const = 0;
  virtual std::string buffers() const { return ""; }  // whether registered, and why not; empty: never asked
};

// `file` must outlive them.

// EnvironmentError with the reason where the system refuses; UnsupportedError in a build without liburing.
std::unique_ptr<DiskQueue> make_uring_queue(const DiskFile& file, std::int64_t block_bytes, int depth);
// `reason`: why not io_uring, for the description.
std::unique_ptr<DiskQueue> make_thread_queue(const DiskFile& file, std::int64_t block_bytes, int threads,
                                             const std::string& reason);

}  // namespace tessera::device
