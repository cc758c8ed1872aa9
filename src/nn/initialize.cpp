#include "src/nn/initialize.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "kernels/random.h"
#include "tessera/error.h"

namespace tessera {

void initial_values(const Initial& initial, std::uint64_t seed, std::string_view parameter_name,
                    std::int64_t begin, std::span<float> out, int threads) {
  if (begin < 0)
    throw UsageError(
        fmt::format("initial values of '{}' from element {}; the first is 0", parameter_name, begin));
  if (const auto end = begin + static_cast<std::int64_t>(out.size()); end > initial.numel) {
    const auto drawn = static_cast<std::size_t>(std::max<std::int64_t>(0, initial.numel - begin));
    std::ranges::fill(out.subspan(drawn), 0.0F);
    out = out.first(drawn);
  }
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
  kernels::draw_values(
      threads,
      initial.kind == Initial::Kind::normal ? kernels::Distribution::normal : kernels::Distribution::uniform,
      value, seed, stream, static_cast<std::uint64_t>(begin), out);
}

}  // namespace tessera
