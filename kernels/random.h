// Many random values at once: those of tessera/philox.h, to the bit, on any instruction set.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::kernels {

enum class Distribution : std::uint8_t {
  normal,   // scale · standard normal
  uniform,  // scale · uniform in (−1, 1)
};

// out[i] = the value of element begin + i of (seed, stream), on the host, rounded from double: elements 2j
// and 2j + 1 are of normal_pair(seed, stream, j), or of uniform_pair() of that block. The same bits for any
// cut of the range and any number of threads.
void draw_values(int threads, Distribution distribution, double scale, std::uint64_t seed,
                 std::uint64_t stream, std::uint64_t begin, std::span<float> out);

}  // namespace tessera::kernels
