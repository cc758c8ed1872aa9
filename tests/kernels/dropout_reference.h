// What dropout.h says of an element, from tessera/philox.h alone.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"
#include "tessera/philox.h"

namespace tessera::kernels::testing {

// The factor of an element: 0 where it is dropped. `sequence` and `matrix` count from the dropout's first.
inline float dropout_factor(const Dropout& dropout, std::int64_t sequence, std::int64_t matrix,
                            std::int64_t row, std::int64_t column) {
  if (dropout.threshold == 0) return 1.0f;
  const auto word = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
  const PhiloxBlock block = philox(
      {word(static_cast<std::int64_t>(dropout.key)), word(dropout.key >> 32)},
      {word(column / 8), word(row), dropout.matrix + word(matrix), dropout.first_sequence + word(sequence)});
  const auto half = static_cast<std::size_t>(column % 8);
  const std::uint32_t bits = block[half / 2] >> (half % 2 * 16) & 0xffff;
  return bits < dropout.threshold ? 0.0f : dropout.scale();
}

}  // namespace tessera::kernels::testing
