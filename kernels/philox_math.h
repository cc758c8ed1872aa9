// Philox4x32-10 (tessera/philox.h) for the kernels of every backend. cpu/philox-inl.h computes many counters
// at once.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::kernels {

inline constexpr std::uint32_t kPhiloxMultiply0 = 0xD2511F53u, kPhiloxMultiply1 = 0xCD9E8D57u;
inline constexpr std::uint32_t kPhiloxAdd0 = 0x9E3779B9u, kPhiloxAdd1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

struct PhiloxWords {
  std::uint32_t word[4];
};

TESSERA_HOST_DEVICE inline PhiloxWords philox_words(std::uint64_t key, PhiloxWords counter) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
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
  return {{c0, c1, c2, c3}};
}

// random_key() of tessera/philox.h: 64 random bits that depend on (seed, stream, index).
TESSERA_HOST_DEVICE inline std::uint64_t key_of(std::uint64_t seed, std::uint64_t stream,
                                                std::uint64_t index) {
  const PhiloxWords words =
      philox_words(seed, {{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                           static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}});
  return std::uint64_t{words.word[1]} << 32 | words.word[0];
}

}  // namespace tessera::kernels
