// What dropout.h draws, as the CPU's tests and CUDA compute it; cpu/dropout-inl.h does so for many at once.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/host_device.h"

namespace tessera::kernels {

// The constants of Philox4x32, see tessera/philox.h.
inline constexpr std::uint32_t kPhiloxMultiply0 = 0xD2511F53u, kPhiloxMultiply1 = 0xCD9E8D57u;
inline constexpr std::uint32_t kPhiloxAdd0 = 0x9E3779B9u, kPhiloxAdd1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

// Sequence and matrix count from the dropout's first.
struct DrawnRow {
  std::uint32_t sequence, matrix, row;
};

// Bit i says whether element 8 * block + i of the row is kept.
TESSERA_HOST_DEVICE inline unsigned kept_bits(const Dropout& dropout, const DrawnRow& at,
                                              std::uint32_t block) {
  std::uint32_t c0 = block, c1 = at.row;
  std::uint32_t c2 = dropout.matrix + at.matrix, c3 = dropout.first_sequence + at.sequence;
  auto k0 = static_cast<std::uint32_t>(dropout.key), k1 = static_cast<std::uint32_t>(dropout.key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t a = std::uint64_t{kPhiloxMultiply0} * c0;
    const std::uint64_t b = std::uint64_t{kPhiloxMultiply1} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += kPhiloxAdd0;
    k1 += kPhiloxAdd1;
  }
  const std::uint32_t words[4] = {c0, c1, c2, c3};
  unsigned kept = 0;
  for (int i = 0; i < 4; ++i) {
    kept |= static_cast<unsigned>((words[i] & 0xffffu) >= dropout.threshold) << (2 * i);
    kept |= static_cast<unsigned>((words[i] >> 16) >= dropout.threshold) << (2 * i + 1);
  }
  return kept;
}

}  // namespace tessera::kernels
