// The extents of a tensor, outermost dim first.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

namespace tessera {

// `value` rounded up to a multiple of `multiple`. `value` is 0 or more, `multiple` above 0.
template <std::integral Integer>
constexpr Integer round_up(Integer value, std::type_identity_t<Integer> multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

using Shape = std::vector<std::int64_t>;

// Product of the dims; 1 for a scalar (no dims).
inline std::int64_t numel_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// "[50257, 768]"
inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t dim = 0; dim < shape.size(); ++dim) text += (dim ? ", " : "") + std::to_string(shape[dim]);
  return text + "]";
}

}  // namespace tessera
