// The checksums of a buffer while it is written.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "src/checkpoint/checksum.h"
#include "src/checkpoint/header.h"

namespace tessera::checkpoint {

// Sets the buffer's checksum from its bytes, which come in order: that of each block where the buffer has
// room for them, and of these.
class BufferChecksum {
 public:
  explicit BufferChecksum(StoredBuffer& buffer) : buffer_(buffer) { current_.emplace(); }
  void add(std::span<const std::byte> bytes);
  void finish();

 private:
  StoredBuffer& buffer_;
  std::optional<Checksum> current_;  // of a block, or of all
  std::size_t block_ = 0;
  std::int64_t in_block_ = 0;  // bytes so far
};

}  // namespace tessera::checkpoint
