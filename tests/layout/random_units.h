// Random unit specs for property tests: mixed dtypes, ties, frozen parameters, groups, scalars, empty units.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/layout.h"

namespace tessera::testing {

inline std::int64_t draw(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

inline Shape random_shape(std::mt19937_64& random) {
  switch (draw(random, 0, 4)) {
    case 0:
      return {};
    case 1:
      return {1};
    case 2:
      return {draw(random, 1, 300)};
    case 3:
      return {draw(random, 1, 50), draw(random, 1, 50)};
    default:
      return {draw(random, 1, 9), draw(random, 1, 9), draw(random, 1, 200)};
  }
}

inline std::vector<UnitSpec> random_units(std::mt19937_64& random) {
  std::vector<UnitSpec> units(static_cast<std::size_t>(draw(random, 1, 8)));
  IdVector<ParameterSpec> homes;
  int next = 0;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    units[unit].name = "unit." + std::to_string(unit);
    for (std::int64_t count = draw(random, 0, 7); count > 0; --count) {
      ParameterSpec spec;
      if (!homes.empty() && draw(random, 0, 6) == 0) {
        spec = homes[draw(random, 0, static_cast<std::int64_t>(homes.size()) - 1)];
        spec.tied_to = spec.name;
      } else {
        spec.shape = random_shape(random);
        spec.dtype = static_cast<DType>(draw(random, 0, 2));
        spec.trainable = draw(random, 0, 3) != 0;
        spec.group = static_cast<int>(draw(random, 0, 2));
      }
      spec.name = "parameter." + std::to_string(next++);
      if (spec.tied_to.empty()) homes.push_back(spec);
      units[unit].parameters.push_back(spec);
    }
  }
  return units;
}

// A cut that `ranks` tensor ranks can make, none where the shape has no dim. Lengthens the dim that it cuts
// to what they divide, unless the cut is padded.
inline Cut random_cut(std::mt19937_64& random, Shape& shape, int ranks) {
  if (shape.empty() || draw(random, 0, 3) == 0) return {};
  Cut cut{.dim = static_cast<int>(draw(random, 0, static_cast<std::int64_t>(shape.size()) - 1))};
  std::int64_t& length = shape[static_cast<std::size_t>(cut.dim)];
  if (draw(random, 0, 2) == 0) cut.blocks = ranks * static_cast<int>(draw(random, 1, 3));
  const int parts = std::max(ranks, cut.blocks);
  cut.padded = draw(random, 0, 2) == 0;
  if (cut.padded) return cut;
  length = 0;
  for (std::int64_t segments = draw(random, 1, 3); segments > 0; --segments) {
    cut.segments.push_back(parts * draw(random, 1, 6));
    length += cut.segments.back();
  }
  if (cut.segments.size() == 1 && draw(random, 0, 1) == 0) cut.segments.clear();
  return cut;
}

// Cuts the units' parameters for so many ranks, ties as what they are tied to. Of the others the gradients of
// some are partial.
inline void cut_randomly(std::mt19937_64& random, std::vector<UnitSpec>& units, int ranks) {
  std::unordered_map<std::string, ParameterSpec> homes;
  for (UnitSpec& unit : units) {
    for (ParameterSpec& spec : unit.parameters) {
      if (spec.tied_to.empty()) {
        spec.cut = random_cut(random, spec.shape, ranks);
        spec.gradient = draw(random, 0, 1) == 0 ? GradientOver::copied : GradientOver::partial;
        homes.emplace(spec.name, spec);
      } else {
        const ParameterSpec& home = homes.at(spec.tied_to);
        spec.shape = home.shape;
        spec.cut = home.cut;
        spec.gradient = home.gradient;
      }
    }
  }
}

inline int random_world(std::mt19937_64& random) {
  const int small[] = {1, 2, 3, 4, 7, 8, 64, 1000, 1024};
  return draw(random, 0, 1) == 0 ? small[draw(random, 0, 8)] : static_cast<int>(draw(random, 1, 1024));
}

}  // namespace tessera::testing
