#include "src/tune/value_choices.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace tessera {
namespace {

// As the simulator times a recompute.
double time_of(const UnitGraph& graph, const ActivationChoice& choice, const CostModel& cost) {
  double us = 0;
  for (const int id : graph.parts_in(Pass::recompute, choice)) {
    const PartSpec& part = graph.parts[id];
    std::int64_t written = 0;
    for (const ValueId value : part.writes) written += value < 0 ? 0 : graph.values[value].bytes;
    us += part.flops > 0 ? part.flops / cost.flops_per_us
                         : static_cast<double>(written) / cost.memory_bytes_per_us;
  }
  return us;
}

struct Set {
  ActivationChoice choice;
  std::int64_t bytes = 0;  // that it frees
};

// Adds to the set the value that frees most for its time. False where none is left.
bool grow(const UnitGraph& graph, const CostModel& cost, Set& set) {
  const double now = time_of(graph, set.choice, cost);
  double best = std::numeric_limits<double>::infinity();
  std::optional<Set> found;
  for (ValueId value = 0; value < graph.values.count(); ++value) {
    const std::int64_t bytes = graph.values[value].bytes;
    if (bytes == 0 || !graph.is_kept(value, set.choice) || graph.root(value) != value) continue;
    Set more = set;
    more.choice.again.insert(std::ranges::lower_bound(more.choice.again, value), value);
    more.bytes += bytes;
    const double each = (time_of(graph, more.choice, cost) - now) / static_cast<double>(bytes);
    if (each < best) best = each, found = std::move(more);
  }
  if (found) set = std::move(*found);
  return found.has_value();
}

// What names all that is recomputable is selective, and the rest besides.
ActivationChoice in_short(const UnitGraph& graph, ActivationChoice choice) {
  const auto recomputable = [&](ValueId value) { return graph.values[value].keep == Keep::recomputable; };
  for (ValueId value = 0; value < graph.values.count(); ++value)
    if (recomputable(value) && graph.values[value].bytes > 0 && graph.root(value) == value &&
        graph.is_kept(value, choice))
      return choice;
  std::erase_if(choice.again, recomputable);
  choice.recompute = Recompute::selective;
  return choice;
}

// Whether the training programs' graphs of a unit have the same values, so that a set of them means one
// thing.
bool same_values(const std::vector<const UnitGraph*>& graphs) {
  const auto alike = [](const ValueSpec& a, const ValueSpec& b) {
    return a.name == b.name && a.keep == b.keep;
  };
  return std::ranges::all_of(graphs, [&](const UnitGraph* graph) {
    return graph != nullptr && graphs[0] != nullptr &&
           std::ranges::equal(graph->values, graphs[0]->values, alike);
  });
}

// A few sets of values, from few bytes to many. Each adds to the one before the values that free most memory
// for the time that it takes to make them again. None where the unit declares no values of its own.
constexpr int kMostSets = 4;
std::vector<ActivationChoice> value_choices(const UnitGraph& graph, Space kept, const CostModel& cost) {
  if (graph.keeps_more) return {};
  std::vector<Set> all = {{.choice = {.kept = kept}}};
  for (Set next = all.back(); grow(graph, cost, next);) all.push_back(next);
  const std::int64_t most = all.back().bytes;
  std::vector<ActivationChoice> chosen;
  for (int k = 1; k <= kMostSets; ++k) {
    const auto set =
        std::ranges::find_if(all, [&](const Set& of) { return of.bytes * (kMostSets + 1) >= most * k; });
    if (set->choice.again.empty()) continue;
    ActivationChoice choice = in_short(graph, set->choice);
    if (chosen.empty() || chosen.back() != choice) chosen.push_back(std::move(choice));
  }
  return chosen;
}

}  // namespace

std::vector<UnitChoices> choices_to_try(std::span<const StepSpec> specs, const CostModel& cost, int units,
                                        std::span<const ActivationChoice> among) {
  std::vector<UnitChoices> all;
  for (const ActivationChoice& choice : among) all.emplace_back(units, choice);
  for (const ActivationChoice& choice : among) {
    if (choice.recomputes()) continue;
    std::vector<UnitChoices> by_value(kMostSets, UnitChoices(units, choice));
    std::size_t most = 0;
    for (UnitId unit = 0; unit < units; ++unit) {
      std::vector<const UnitGraph*> graphs;
      for (const StepSpec& spec : specs)
        if (spec.kind == StepKind::train)
          graphs.push_back(spec.activations.units.empty() ? nullptr : &spec.activations.units[unit]);
      if (graphs.empty() || !same_values(graphs)) continue;
      const auto sets = value_choices(*graphs[0], choice.kept, cost);
      for (std::size_t k = 0; k < sets.size(); ++k) by_value[k][unit] = sets[k];
      most = std::max(most, sets.size());
    }
    all.insert(all.end(), by_value.begin(), by_value.begin() + static_cast<std::ptrdiff_t>(most));
  }
  return all;
}

}  // namespace tessera
