// Finds writes beyond a buffer. The plan leaves bytes free on both sides of each buffer
// (MemoryPlan::guard_bytes). A guard is these bytes of one buffer, filled with a pattern of its own when the
// buffer comes to life, and compared behind each instruction that touches the buffer. On the host a
// buffer has whole blocks of kBlockBytes, and its guard lies behind these. Guards of buffers on the disk are
// neither filled nor compared.
#pragma once

#include <cstdint>

#include "tessera/device.h"
#include "tessera/program.h"

namespace tessera {

class Guards {
 public:
  // With `bytes` 0 there are none, and no other function may be called.
  Guards(Device& device, std::int64_t bytes) : device_(device), bytes_(bytes) {}
  explicit operator bool() const { return bytes_ > 0; }

  // Both functions are called where `stream`'s tasks run or, for a stream on the caller, are submitted. On a
  // GPU's stream they come behind what it was given, and check() waits for that.
  void fill(Stream& stream, std::byte* address, const Buffer& buffer) const;
  // Where bytes are not what fill() wrote: Error that names the buffer, the first such byte and the
  // instruction that is over, which wrote there unless another lane did meanwhile.
  void check(Stream& stream, const std::byte* address, const Buffer& buffer, const Program& program,
             InstructionId over) const;

 private:
  // Whether `stream` can reach the buffer: a host's thread does not reach a GPU's memory.
  bool reaches(const Stream& stream, const Buffer& buffer) const;

  Device& device_;
  const std::int64_t bytes_;
};

}  // namespace tessera
