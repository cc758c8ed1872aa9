#include "src/nn/initialize.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "tessera/error.h"
#include "tessera/philox.h"

namespace tessera {
namespace {

using Pair = std::array<double, 2>;

// Elements 2i and 2i + 1 come from pair i; a range may begin or end between the two.
template <class DrawPair>
void draw(std::uint64_t begin, std::span<float> out, const DrawPair& draw_pair) {
  std::size_t written = 0;
  while (written < out.size()) {
    const std::uint64_t index = begin + written;
    const Pair pair = draw_pair(index / 2);
    if (index % 2 == 0) out[written++] = static_cast<float>(pair[0]);
    if (written < out.size()) out[written++] = static_cast<float>(pair[1]);
  }
}

}  // namespace

void initial_values(const Initial& initial, std::uint64_t seed, std::string_view parameter_name,
                    std::int64_t begin, std::span<float> out) {
  if (begin < 0)
    throw UsageError(
        fmt::format("initial values of '{}' from element {}; the first is 0", parameter_name, begin));
  const double value = initial.value;
  if (initial.kind == Initial::Kind::constant) {
    std::fill(out.begin(), out.end(), static_cast<float>(value));
    return;
  }
  if (!(value >= 0.0) || !std::isfinite(value))
    throw UsageError(fmt::format("initial values of '{}' have {} {}; it must be finite and 0 or more",
                                 parameter_name,
                                 initial.kind == Initial::Kind::normal ? "deviation" : "bound", value));
  const std::uint64_t stream = XXH3_64bits(parameter_name.data(), parameter_name.size());
  const auto first = static_cast<std::uint64_t>(begin);
  if (initial.kind == Initial::Kind::normal) {
    draw(first, out, [&](std::uint64_t pair) {
      const Pair standard = normal_pair(seed, stream, pair);
      return Pair{value * standard[0], value * standard[1]};
    });
  } else {
    draw(first, out, [&](std::uint64_t pair) {
      const Pair unit = uniform_pair(random_block(seed, stream, pair));
      return Pair{value * (2.0 * unit[0] - 1.0), value * (2.0 * unit[1] - 1.0)};
    });
  }
}

}  // namespace tessera
