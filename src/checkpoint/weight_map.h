// A WeightMap against the model it is for, and the transposition between their layouts.
#pragma once

#include <cstdint>

#include "tessera/layout.h"
#include "tessera/safetensors.h"

namespace tessera::checkpoint {

// Elements that pass through memory at once.
inline constexpr std::int64_t kStageNumel = std::int64_t{1} << 22;

// UsageError unless each element of each parameter that is not tied to another is in one tensor.
void check_covers(const WeightMap& map, const Layout& layout);

// Rows that fit a stage of `columns` wide rows, at least one, at most `rows`.
std::int64_t rows_of_stage(std::int64_t rows, std::int64_t columns);

// output[c][r] = input[r][c].
void transpose(std::int64_t rows, std::int64_t columns, const float* input, float* output);

}  // namespace tessera::checkpoint
