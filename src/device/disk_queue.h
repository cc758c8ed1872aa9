// Moves a Disk's blocks with several requests at a time. There are two kinds; a Disk chooses when it is made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/device/disk_file.h"

namespace tessera::device {

class DiskQueue {
 public:
  virtual ~DiskQueue() = default;

  // Cuts the transfer into blocks, and returns when none is in flight. Throws the error of the first that
  // failed.
  virtual void move(const Transfer& transfer) = 0;
  virtual void register_memory(std::byte* /*base*/, std::int64_t /*bytes*/) {}
  virtual std::string description() const = 0;
  // Whether memory is registered, or why not; empty if that was never asked.
  virtual std::string buffers() const { return ""; }
};

// `file` must outlive the queue.

// Throws EnvironmentError with the reason if the system refuses, UnsupportedError in a build without
// liburing.
std::unique_ptr<DiskQueue> make_uring_queue(const DiskFile& file, std::int64_t block_bytes, int depth);
// `reason` says in the description why io_uring is not used.
std::unique_ptr<DiskQueue> make_thread_queue(const DiskFile& file, std::int64_t block_bytes, int threads,
                                             const std::string& reason);

}  // namespace tessera::device
