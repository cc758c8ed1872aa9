// Floor 3, inside: bytes of the host for a device that is behind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/device.h"

namespace tessera::device {

// Copies memory of the host to the device in a stream's order without waiting for what the stream was given
// before. A GPU reads memory that is not pinned only once it comes to the copy, and the call blocks until
// then: each piece goes through one of two halves of pinned memory instead. What outruns both waits for the
// older. The CPU copies at once and takes no memory.
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
