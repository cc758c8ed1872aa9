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

}  // namespace

std::vector<ActivationChoice> value_choices(const UnitGraph& graph, Space kept, const CostModel& cost) {
  if (graph.keeps_more) return {};
  std::vector<Set> all = {{.choice = {.kept = kept}}};
  for (Set next = all.back(); grow(graph, cost, next);) all.push_back(next);
  const std::int64_t most = all.back().bytes;
  std::vector<ActivationChoice> chosen;
  for (int k = 1; k <= kMostValueChoices; ++k) {
    const auto set = std::ranges::find_if(
        all, [&](const Set& of) { return of.bytes * (kMostValueChoices + 1) >= most * k; });
    if (set->choice.again.empty()) continue;
    ActivationChoice choice = in_short(graph, set->choice);
    if (chosen.empty() || chosen.back() != choice) chosen.push_back(std::move(choice));
  }
  return chosen;
}

}  // namespace tessera
