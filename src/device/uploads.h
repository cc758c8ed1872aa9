// Floor 3, internal: copies bytes of the host to a device that still has earlier work to do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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

 private:
  Device& device_;
  Stream& stream_;
  Arena pieces_;
  std::array<Event, 2> read_ = {};  // the device has read that half
  std::size_t next_ = 0;
};

}  // namespace tessera::device
