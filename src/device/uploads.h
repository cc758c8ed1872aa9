// Floor 3, internal: copies bytes of the host to a device that still has earlier work to do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/device.h"

namespace tessera::device {

// Copies host memory to the device in a stream's order, without waiting for earlier work of the stream. A GPU
// reads memory that is not pinned only when it reaches the copy, and the call would block until then. So each
// piece goes through one of two halves of pinned memory. If both are in use, the call waits for the older
// one. The CPU copies at once and takes no memory.
class Uploads {
 public:
  static constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

  // `device` and `stream` outlive it.
  Uploads(Device& device, Stream& stream);

  // `from` may be changed when this returns.
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes);

  // What the copies of a captured step read whenever the step is done (Device::begin_capture): pinned memory,
  // with a piece for each of them, in their order.
  struct Captured {
    Arena memory;
    std::vector<std::span<std::byte>> pieces;
  };
  // The memory that the copies so far would take in a Captured; grows with each.
  std::int64_t captured_bytes() const { return captured_bytes_; }
  // From here to end_capture(), copies are captured: each reads a piece of its own, in which its bytes are
  // now. Takes `bytes` of pinned memory, before the device begins to capture. EnvironmentError from a copy
  // for which there is no room.
  void begin_capture(std::int64_t bytes);
  Captured end_capture();
  // From here to end_replay(), a copy only writes its bytes to the next piece of a captured step, which will
  // be launched. UsageError from one that has other bytes than that piece, or too many; end_replay() throws
  // it where pieces are left.
  void begin_replay(const Captured& captured) { replayed_ = captured.pieces; }
  void end_replay();
  // The next piece, for who writes it in place.
  std::span<std::byte> next_replayed();
  std::size_t left_to_replay() const { return replayed_.size(); }

 private:
  void capture(std::byte* to, const std::byte* from, std::int64_t bytes);

  Device& device_;
  Stream& stream_;
  Arena pieces_;
  std::array<Event, 2> read_ = {};  // the device has read that half
  std::size_t next_ = 0;
  std::int64_t captured_bytes_ = 0;
  bool captures_ = false;
  Captured captured_;
  std::int64_t used_bytes_ = 0;                     // of captured_.memory
  std::span<const std::span<std::byte>> replayed_;  // that are still to be written
};

}  // namespace tessera::device
