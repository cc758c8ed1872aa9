// Why a plan is refused, and which changes of strategy would make it fit.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "src/program/builder.h"
#include "tessera/budget.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr std::size_t kListed = 3;

using Change = std::function<bool(StepSpec&)>;  // false where it is in force already

int stage_of(const Placements& placements) {
  for (int stage = 0; stage < 3; ++stage)
    if (Placements::of_stage(stage) == placements) return stage;
  return 3;
}

bool raise(Strategy& strategy, int stage) {
  if (stage_of(strategy.placements) >= stage) return false;
  strategy.placements = Placements::of_stage(stage);
  return true;
}

bool move_states(Strategy& strategy, Space space) {
  const Space before = strategy.offload.states;
  if (space == Space::device)
    strategy.keep_states_on_device();
  else
    strategy.offload.states = space;
  return before != space;
}

// Also of the units that keep theirs on the device.
bool move_all_states(StepSpec& spec) {
  return std::exchange(spec.strategy.offload.states_on_device, 0.0) > 0;
}

bool move_activations(StepSpec& spec) {
  if (!spec.order.empty() || !spec.strategy.unit_activations.empty()) return false;
  return std::exchange(spec.strategy.offload.activations, Space::host) != Space::host;
}

// What is on its way to or from the disk, one unit's at a time.
bool stage_one(StepSpec& spec) {
  Offload& offload = spec.strategy.offload;
  return offload.on_disk() && std::exchange(offload.staged, 1) > 1;
}

// An order of a trainer's own says itself what is recomputed.
bool recompute_cheap_parts(StepSpec& spec) {
  Strategy& strategy = spec.strategy;
  if (!spec.order.empty() || strategy.recompute != Recompute::none || !strategy.unit_activations.empty())
    return false;
  strategy.recompute = Recompute::selective;
  return true;
}

bool recompute_all(StepSpec& spec) {
  if (!spec.order.empty()) return false;
  const bool chosen = !std::exchange(spec.strategy.unit_activations, {}).empty();
  return std::exchange(spec.strategy.recompute, Recompute::full) != Recompute::full || chosen;
}

// In the order in which they are taken together: what costs little time first.
std::vector<Change> changes() {
  const auto stage = [](int number) {
    return [number](StepSpec& spec) { return raise(spec.strategy, number); };
  };
  const auto states = [](Space space) {
    return [space](StepSpec& spec) { return move_states(spec.strategy, space); };
  };
  const auto parameters = [](Space space) {
    return [space](StepSpec& spec) {
      if (space != Space::device) raise(spec.strategy, 3);
      return std::exchange(spec.strategy.offload.parameters, space) != space;
    };
  };
  return {states(Space::device),
          parameters(Space::device),
          stage(1),
          stage(2),
          recompute_cheap_parts,
          [](StepSpec& spec) { return std::exchange(spec.strategy.resident_units, 0) > 0; },
          stage(3),
          move_all_states,
          states(Space::host),
          move_activations,
          recompute_all,
          parameters(Space::host),
          states(Space::disk),
          parameters(Space::disk),
          stage_one,
          [](StepSpec& spec) { return std::exchange(spec.strategy.prefetch, 0) > 0; }};
}

// In the words of a configuration; empty where nothing differs.
std::string describe_changes(const Strategy& from, const Strategy& to) {
  std::vector<std::string> parts;
  if (to.placements != from.placements) parts.push_back(fmt::format("stage {}", stage_of(to.placements)));
  if (to.resident_units != from.resident_units) parts.push_back("no resident units");
  if (to.recompute != from.recompute || to.unit_activations != from.unit_activations)
    parts.push_back(fmt::format("recompute = {}", name_of(to.recompute)));
  if (to.offload.states != from.offload.states)
    parts.push_back(fmt::format("offload.states = {}", name_of(to.offload.states)));
  if (to.offload.states_on_device != from.offload.states_on_device)
    parts.push_back(fmt::format("offload.states_on_device = {}", to.offload.states_on_device));
  if (to.offload.parameters != from.offload.parameters)
    parts.push_back(fmt::format("offload.parameters = {}", name_of(to.offload.parameters)));
  if (to.offload.activations != from.offload.activations)
    parts.push_back(fmt::format("offload.activations = {}", name_of(to.offload.activations)));
  if (to.offload.staged != from.offload.staged)
    parts.push_back(fmt::format("offload.staged = {}", to.offload.staged));
  if (to.update != from.update) parts.push_back(fmt::format("update = {}", name_of(to.update)));
  if (to.prefetch != from.prefetch) parts.push_back("prefetch = 0");
  return fmt::format("{}", fmt::join(parts, ", "));
}

struct Outcome {
  std::string changes;
  std::array<std::int64_t, kSpaces> bytes = {};  // of the pipeline rank that needs most
  double step_us = 0;
};

// "stage 3, offload.parameters = host" where stage 3 is enough.
bool says_more_than_needed(const Outcome& outcome, const std::vector<Outcome>& found) {
  return std::ranges::any_of(
      found, [&](const Outcome& other) { return outcome.changes.starts_with(other.changes + ", "); });
}

class Search {
 public:
  Search(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
         const MemoryBudget& budget, const CostModel& cost)
      : layout_(layout), mesh_(mesh), specs_(specs), budget_(budget), cost_(cost) {}

  // Each change by itself; where these are few, the first ones together that fit, none of which can stay
  // away.
  std::vector<Outcome> fitting() {
    std::vector<Outcome> found;
    std::vector<std::size_t> others, together;
    for (std::size_t change = 0; change < changes_.size(); ++change) {
      const std::optional<Outcome>& alone = attempt({change});
      if (!alone)
        others.push_back(change);
      else if (!says_more_than_needed(*alone, found))
        found.push_back(*alone);
    }
    for (std::size_t at = 0; at < others.size() && found.size() < kListed; ++at) {
      together.push_back(others[at]);
      if (!attempt(together)) continue;
      found.push_back(*attempt(needed_of(together)));
      break;
    }
    std::ranges::stable_sort(found, {}, &Outcome::step_us);
    if (found.size() > kListed) found.resize(kListed);
    return found;
  }

  double step_us_as_it_is() { return step_us(programs_of(specs_)); }

 private:
  struct Plans {
    std::vector<Program> programs = {};  // the first of each pipeline rank
    std::array<std::int64_t, kSpaces> bytes = {};
    bool fit = true;
  };

  bool means_something(const std::vector<StepSpec>& specs) const {
    try {
      for (const StepSpec& spec : specs) check_strategy(mesh_, spec.strategy);
    } catch (const UsageError&) {
      return false;
    }
    return true;
  }

  // No more pipeline ranks than show that it does not fit.
  Plans plans_of(const std::vector<StepSpec>& specs, bool all) const {
    Plans plans;
    if (!means_something(specs)) return {.fit = false};
    for (int rank = 0; rank < mesh_.pipeline && (plans.fit || all); ++rank) {
      PlannedPrograms planned = build_and_plan(layout_, mesh_, specs, rank);
      plans.fit = plans.fit && budget_.holds(planned.plan);
      for (std::size_t space = 0; space < plans.bytes.size(); ++space)
        plans.bytes[space] = std::max(plans.bytes[space], planned.plan.spaces[space].arena_bytes);
      plans.programs.push_back(std::move(planned.programs.front()));
    }
    return plans;
  }
  std::vector<Program> programs_of(const std::vector<StepSpec>& specs) const {
    return plans_of(specs, true).programs;
  }
  double step_us(const std::vector<Program>& programs) const {
    return simulate({.mesh = mesh_, .programs = programs, .program_of_rank = mesh_.places(Axis::pipeline)},
                    layout_, cost_)
        .total_us;
  }

  // None where these changes change nothing, mean nothing on this mesh, or do not fit.
  const std::optional<Outcome>& attempt(const std::vector<std::size_t>& chosen) {
    std::vector<StepSpec> specs = specs_;
    bool changed = false;
    for (const std::size_t change : chosen)
      for (StepSpec& spec : specs) changed |= changes_[change](spec);
    const std::string text = describe_changes(specs_.front().strategy, specs.front().strategy);
    const auto [entry, is_new] = tried_.try_emplace(text);
    if (!is_new || !changed || text.empty()) return entry->second;
    if (const Plans plans = plans_of(specs, false); plans.fit)
      entry->second = Outcome{text, plans.bytes, step_us(plans.programs)};
    return entry->second;
  }

  std::vector<std::size_t> needed_of(std::vector<std::size_t> chosen) {
    for (std::size_t at = chosen.size(); at-- > 0;) {
      std::vector<std::size_t> fewer = chosen;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(at));
      if (attempt(fewer)) chosen = std::move(fewer);
    }
    return chosen;
  }

  const Layout& layout_;
  const Mesh& mesh_;
  const std::vector<StepSpec>& specs_;
  const MemoryBudget& budget_;
  const CostModel& cost_;
  const std::vector<Change> changes_ = changes();
  std::map<std::string, std::optional<Outcome>> tried_;  // by description
};

std::string describe_misfit(const MemoryPlan& plan, const MemoryBudget& budget) {
  std::string text;
  const auto space = [&](Space which, std::int64_t bytes, std::int64_t external) {
    std::int64_t needed = 0;
    if (__builtin_add_overflow(plan.space(which).arena_bytes, external, &needed))
      needed = std::numeric_limits<std::int64_t>::max();
    if (bytes == 0 || needed <= bytes) return;
    text += fmt::format("{}_memory is {} bytes, but the plan needs {}: {} bytes are missing\n{}",
                        name_of(which), bytes, needed, needed - bytes, describe_plan(plan, which));
    if (external > 0) text += fmt::format("  {:<22}{:>18}\n", "external bytes", external);
  };
  space(Space::device, budget.device_bytes, budget.external_bytes);
  space(Space::host, budget.host_bytes, 0);
  return text;
}

}  // namespace

std::string explain_misfit(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                           const MemoryPlan& plan, const MemoryBudget& budget, const CostModel& cost) {
  std::string text = describe_misfit(plan, budget);
  Search search(layout, mesh, specs, budget, cost);
  const std::vector<Outcome> found = search.fitting();
  if (found.empty())
    return text + "  no change of strategy fits: take more ranks, a smaller microbatch, or more memory";
  const double now_us = search.step_us_as_it_is();
  for (const Outcome& outcome : found) {
    text += fmt::format("{}  would fit with {}: {} bytes", &outcome == &found.front() ? "" : "\n",
                        outcome.changes, outcome.bytes[0] + budget.external_bytes);
    for (const Space space : {Space::host, Space::disk})
      if (const std::int64_t bytes = outcome.bytes[static_cast<std::size_t>(space)]; bytes > 0)
        text += fmt::format(", {} on the {}", bytes, name_of(space));
    // Without the passes' operations a step has no time worth telling.
    if (!cost.forward_flops.empty() && now_us > 0)
      text += fmt::format(", {:.2f} × the step's time", outcome.step_us / now_us);
  }
  return text;
}

}  // namespace tessera
