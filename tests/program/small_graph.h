// A unit of several parts: a layer of two products with a norm before and a bend between them. Of the unit's
// parameters the first belongs to the first product, the second to the other.
#pragma once

#include "tessera/activations.h"

namespace tessera::testing {

enum SmallValue : ValueId {
  kNormValue,
  kStatisticsValue,
  kUpValue,
  kBentValue,
  kBentGradient,
  kUpGradient,
  kNormGradient
};

inline UnitGraph small_graph() {
  using enum Keep;
  using Shared = SharedValue;
  const std::vector<int> none, first = {0}, second = {1};
  UnitGraph graph;
  graph.output_bytes = 4096;
  graph.values = {{"norm", 4096, recomputable},
                  {"statistics", 256, recomputable},
                  {"up", 8192, saved},
                  {"bent", 8192, recomputable},
                  {"bent.gradient", 8192, pass, kBentValue},
                  {"up.gradient", 8192, pass, kBentGradient},
                  {"norm.gradient", 4096, pass, kNormValue}};
  using enum Pass;
  graph.parts = {
      {"norm", forward, {Shared::input}, {kNormValue, kStatisticsValue}},
      {"up", forward, {kNormValue}, {kUpValue}, {}, 2048, 1e6},
      {"bend", forward, {kUpValue}, {kBentValue}},
      {"down", forward, {kBentValue}, {Shared::output}, {}, 2048, 1e6},
      {"down parameters", backward, {kBentValue, Shared::output_gradient}, {}, second, 1024, 1e6},
      {"down", backward, {Shared::output_gradient}, {kBentGradient}, none, 2048, 1e6},
      {"bend", backward, {kUpValue, kBentGradient}, {kUpGradient}, none},
      {"up parameters", backward, {kNormValue, kUpGradient}, {}, first, 1024, 1e6},
      {"up", backward, {kUpGradient}, {kNormGradient}, none, 2048, 1e6},
      {"norm", backward, {Shared::input, kStatisticsValue, kNormGradient}, {Shared::input_gradient}, none},
  };
  return graph;
}

inline ActivationSpec small_graphs(int units) {
  ActivationSpec spec{.units = {}, .batch_bytes = 512};
  for (int unit = 0; unit < units; ++unit) spec.units.push_back(small_graph());
  spec.units.front().parts.front().reads = {SharedValue::batch};
  return spec;
}

}  // namespace tessera::testing
