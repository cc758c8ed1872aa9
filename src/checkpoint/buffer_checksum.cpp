#include "src/checkpoint/buffer_checksum.h"

#include <algorithm>

namespace tessera::checkpoint {

void BufferChecksum::add(std::span<const std::byte> bytes) {
  if (buffer_.blocks.empty()) return current_->add(bytes);
  while (!bytes.empty()) {
    const auto part =
        bytes.first(std::min(bytes.size(), static_cast<std::size_t>(kChecksumBytes - in_block_)));
    current_->add(part);
    in_block_ += static_cast<std::int64_t>(part.size());
    bytes = bytes.subspan(part.size());
    if (in_block_ < kChecksumBytes) continue;
    buffer_.blocks[block_++] = current_->value();
    current_.emplace();
    in_block_ = 0;
  }
}

void BufferChecksum::finish() {
  if (in_block_ > 0) buffer_.blocks[block_] = current_->value();
  buffer_.checksum =
      buffer_.blocks.empty() ? current_->value() : checksum_of(std::as_bytes(std::span(buffer_.blocks)));
}

}  // namespace tessera::checkpoint
