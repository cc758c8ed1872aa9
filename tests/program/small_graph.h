// A unit of several parts: a layer of two products with a norm before and a bend between them. Of the unit's
// parameters the first belongs to the first product, the second to the other.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/activations.h"
#include "tessera/layout.h"

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

enum SplitValue : ValueId {
  kSplitNorm,
  kNormWhole,
  kSplitUp,
  kDownPartial,
  kDownSum,
  kGradientWhole,
  kSplitUpGradient,
  kNormPartial,
  kNormSum
};

// The same on several tensor ranks: each has a part of the rows between units, and of the columns between the
// products. The unit has three parameters: of the first product, of the second, and of the norm.
inline UnitGraph small_split_graph(int ranks, std::int64_t part = 1024) {
  using enum Keep;
  using enum Held;
  using Shared = SharedValue;
  const std::vector<int> none, first = {0}, second = {1}, third = {2};
  UnitGraph graph;
  graph.output_bytes = part;
  graph.values = {{.name = "norm", .bytes = part, .keep = recomputable, .held = split},
                  {.name = "norm.whole", .bytes = part * ranks, .exchanged = kSplitNorm},
                  {.name = "up", .bytes = 2 * part, .keep = saved},
                  {.name = "down.partial", .bytes = part * ranks, .held = partial},
                  {.name = "down.sum", .bytes = part, .held = split, .exchanged = kDownPartial},
                  {.name = "gradient.whole", .bytes = part * ranks, .exchanged = Shared::output_gradient},
                  {.name = "up.gradient", .bytes = 2 * part},
                  {.name = "norm.gradient.partial", .bytes = part * ranks, .held = partial},
                  {.name = "norm.gradient.sum", .bytes = part, .held = split, .exchanged = kNormPartial}};
  using enum Pass;
  graph.parts = {
      {"norm", forward, {Shared::input}, {kSplitNorm}},
      {"up", forward, {kNormWhole}, {kSplitUp}, {}, 2048, 1e6},
      {"down", forward, {kSplitUp}, {kDownPartial}, {}, 2048, 1e6},
      {"add", forward, {Shared::input, kDownSum}, {Shared::output}},
      {"down parameters", backward, {kSplitUp, kGradientWhole}, {}, second, 1024, 1e6},
      {"down", backward, {kGradientWhole}, {kSplitUpGradient}, none, 2048, 1e6},
      {"up parameters", backward, {kNormWhole, kSplitUpGradient}, {}, first, 1024, 1e6},
      {"up", backward, {kSplitUpGradient}, {kNormPartial}, none, 2048, 1e6},
      {"norm", backward, {Shared::input, kNormSum, Shared::output_gradient}, {Shared::input_gradient}, third},
  };
  return graph;
}

// The same where what is exchanged travels in so many pieces, and the products run on one at a time. What the
// last part of a pass hands on it makes in pieces, too. Pieces of value v begin at `first[v]`.
struct InPieces {
  UnitGraph graph;
  std::map<ValueId, ValueId> first = {};

  InPieces(int ranks, int pieces, std::int64_t part = 1024)
      : InPieces(small_split_graph(ranks, part), pieces) {}
  // Cuts a graph that is made so, whose values may have other bytes.
  InPieces(UnitGraph split, int pieces) : graph(std::move(split)) {
    using Shared = SharedValue;
    const auto cut = [&](ValueId of, std::int64_t bytes, Held held) {
      first[of] = graph.values.count();
      for (int piece = 0; piece < pieces; ++piece)
        graph.values.push_back({.name = "piece." + std::to_string(graph.values.count()),
                                .bytes = bytes / pieces,
                                .held = held,
                                .piece_of = of,
                                .begin = bytes / pieces * piece});
    };
    for (const ValueId shared : {Shared::output, Shared::output_gradient})
      cut(shared, graph.output_bytes, Held::split);
    for (ValueId id = 0; id <= kNormSum; ++id) cut(id, graph.values[id].bytes, graph.values[id].held);
    for (ValueId made = 0; made <= kNormSum; ++made) {
      const ValueId of = graph.values[made].exchanged;
      if (of == kNoValue) continue;
      graph.values[made].exchanged = kNoValue;
      for (int piece = 0; piece < pieces; ++piece)
        graph.values[first[made] + piece].exchanged = first[of] + piece;
    }
    const IdVector<PartSpec> whole = graph.parts;
    graph.parts.clear();
    const auto add = [&](int part_of, int piece) {
      PartSpec& added = graph.parts.emplace_back(whole[part_of]);
      if (piece < 0) return;
      added.name += " " + std::to_string(piece);
      for (std::vector<ValueId>* values : {&added.reads, &added.writes})
        for (ValueId& value : *values)
          if (first.contains(value)) value = first.at(value) + piece;
    };
    const auto each = [&](const std::vector<int>& parts) {
      for (int piece = 0; piece < pieces; ++piece)
        for (const int part_of : parts) add(part_of, piece);
    };
    add(0, -1);
    each({1, 2});
    each({3});
    each({5, 7});
    for (const int part_of : {4, 6, 8}) add(part_of, -1);
  }
};

// Units of such parameters: the products' are cut, the norm's gradient is partial.
inline std::vector<UnitSpec> split_chain(int units) {
  std::vector<UnitSpec> result;
  for (int unit = 0; unit < units; ++unit) {
    const std::string name = "block." + std::to_string(unit);
    result.push_back({name,
                      {{.name = name + ".up", .shape = {16, 8}, .cut = {.dim = 0}},
                       {.name = name + ".down", .shape = {8, 16}, .cut = {.dim = 1}},
                       {.name = name + ".gain", .shape = {8}, .gradient = GradientOver::partial}}});
  }
  return result;
}

inline ActivationSpec small_graphs(int units) {
  ActivationSpec spec{.units = {}, .batch_bytes = 512};
  for (int unit = 0; unit < units; ++unit) spec.units.push_back(small_graph());
  spec.units.front().parts.front().reads = {SharedValue::batch};
  return spec;
}

}  // namespace tessera::testing
