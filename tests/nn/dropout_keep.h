// What the references drop, by what dropout.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/dropout.h"
#include "tests/kernels/dropout_reference.h"
#include "tests/nn/reference_ops.h"

namespace tessera::testing {

// Of a batch that begins with the step's sequence `first`, by the key of each unit.
inline reference::Keep reference_keep(double share, std::int64_t first,
                                      std::function<std::uint64_t(std::size_t unit)> key) {
  const std::uint32_t threshold = kernels::dropout_threshold(share);
  return [threshold, first, key = std::move(key)](std::size_t unit, std::size_t sequence, std::size_t matrix,
                                                  std::size_t row, std::size_t column) {
    const auto number = [](std::size_t value) { return static_cast<std::int64_t>(value); };
    return static_cast<double>(kernels::testing::dropout_factor(
        {.threshold = threshold, .key = key(unit), .first_sequence = static_cast<std::uint32_t>(first)},
        number(sequence), number(matrix), number(row), number(column)));
  };
}

}  // namespace tessera::testing
