// Checks a WeightMap against its model, and transposes between the layouts of files and parameters.
#pragma once

#include <cstdint>

#include "tessera/layout.h"
#include "tessera/safetensors.h"

namespace tessera::checkpoint {

// Elements that are in memory at a time.
inline constexpr std::int64_t kStageNumel = std::int64_t{1} << 22;

// The first element of a parameter that is padding; −1 if none is.
std::int64_t begin_of_padding(const WeightMap& map, const std::string& parameter);

// Throws UsageError unless each element of each parameter that is not tied to another is in exactly one
// tensor, or is padding. Of a map that is not whole, parameters may be left out.
void check_covers(const WeightMap& map, const Layout& layout);

// How many rows of `columns` elements are staged at a time: at least 1, at most `rows`.
std::int64_t rows_of_stage(std::int64_t rows, std::int64_t columns);

// output[c][r] = input[r][c].
void transpose(std::int64_t rows, std::int64_t columns, const float* input, float* output);

}  // namespace tessera::checkpoint
