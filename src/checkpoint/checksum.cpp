#include "src/checkpoint/checksum.h"

#include <xxhash.h>

namespace tessera::checkpoint {

std::uint64_t checksum_of(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }

struct Checksum::State {
  State() { XXH3_64bits_reset(&of); }
  XXH3_state_t of;
};
Checksum::Checksum() : state_(std::make_unique<State>()) {}
Checksum::~Checksum() = default;
void Checksum::add(std::span<const std::byte> data) {
  XXH3_64bits_update(&state_->of, data.data(), data.size());
}
std::uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_->of); }

}  // namespace tessera::checkpoint
