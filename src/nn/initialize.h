// Initial values of parameters, drawn element by element so that every world starts from the same model.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/module.h"

namespace tessera {

// Writes elements [begin, begin + out.size()) of the parameter, row-major. A value is a function of seed,
// name and index only, so any cut of the range and number of threads gives the same bits. Throws UsageError
// for a negative begin, or a deviation or bound that is negative or not finite.
void initial_values(const Initial& initial, std::uint64_t seed, std::string_view parameter_name,
                    std::int64_t begin, std::span<float> out, int threads = 1);

}  // namespace tessera
