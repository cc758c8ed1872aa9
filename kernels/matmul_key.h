// The key under which both backends cache prepared matrix products: the numbers that a product was prepared
// for.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tessera::kernels {

struct MatmulKey {
  std::array<std::int64_t, 8> numbers;
  bool operator==(const MatmulKey&) const = default;
};

struct HashMatmulKey {
  std::size_t operator()(const MatmulKey& key) const {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (std::int64_t number : key.numbers)
      hash = std::rotl((hash ^ static_cast<std::uint64_t>(number)) * 0x100000001b3u, 29);
    return hash;
  }
};

}  // namespace tessera::kernels
