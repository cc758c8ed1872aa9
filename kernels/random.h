// Many random values at once, with the same bits as tessera/philox.h on any instruction set.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::kernels {

enum class Distribution : std::uint8_t {
  normal,   // scale · standard normal
  uniform,  // scale · uniform in (−1, 1)
};

// out[i] = the value of element begin + i of (seed, stream), rounded from double. Runs on the host. Elements
// 2j and 2j + 1 are normal_pair(seed, stream, j), or uniform_pair() of block j. The same bits for any cut of
// the range and any number of threads.
void draw_values(int threads, Distribution distribution, double scale, std::uint64_t seed,
                 std::uint64_t stream, std::uint64_t begin, std::span<float> out);

}  // namespace tessera::kernels
