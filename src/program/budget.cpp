#include "tessera/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace tessera {
namespace {

// Of the pipeline rank that needs most.
std::int64_t arena_bytes(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs) {
  std::int64_t most = 0;
  for (int rank = 0; rank < mesh.pipeline; ++rank)
    most = std::max(most, build_and_plan(layout, mesh, specs, rank).plan.space(Space::device).arena_bytes);
  return most;
}

struct Change {
  std::string name;
  std::function<bool(Strategy&)> apply;  // false where it is in force already
};

int stage_of(const Placements& placements) {
  for (int stage = 0; stage < 3; ++stage)
    if (Placements::of_stage(stage) == placements) return stage;
  return 3;
}

// From the one that costs the least time to the one that costs the most.
std::vector<Change> changes() {
  const auto raise_to = [](int stage) {
    return [stage](Strategy& strategy) {
      if (stage_of(strategy.placements) >= stage) return false;
      strategy.placements = Placements::of_stage(stage);
      return true;
    };
  };
  return {
      {"stage 1", raise_to(1)},
      {"stage 2", raise_to(2)},
      {"recompute = selective",
       [](Strategy& strategy) {
         if (strategy.recompute != Recompute::none || !strategy.unit_activations.empty()) return false;
         strategy.recompute = Recompute::selective;
         return true;
       }},
      {"no resident units", [](Strategy& strategy) { return std::exchange(strategy.resident_units, 0) > 0; }},
      {"stage 3", raise_to(3)},
      {"recompute = full",
       [](Strategy& strategy) {
         const bool chosen = !std::exchange(strategy.unit_activations, {}).empty();
         return std::exchange(strategy.recompute, Recompute::full) != Recompute::full || chosen;
       }},
      {"prefetch = 0", [](Strategy& strategy) { return std::exchange(strategy.prefetch, 0) > 0; }}};
}

}  // namespace

PlannedPrograms build_and_plan(const Layout& layout, const Mesh& mesh, std::span<const StepSpec> specs,
                               int pipeline_rank) {
  PlannedPrograms result;
  for (const StepSpec& spec : specs) result.programs.push_back(build_step(layout, mesh, spec, pipeline_rank));
  result.plan = plan_memory(result.programs);
  for (std::size_t index = 0; index < result.programs.size(); ++index)
    link(result.programs[index], &result.plan, static_cast<int>(index));
  return result;
}

int fit_resident_units(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                       std::int64_t budget_bytes) {
  const auto fits = [&](int units) {
    for (StepSpec& spec : specs) spec.strategy.resident_units = units;
    return arena_bytes(layout, mesh, specs) <= budget_bytes;
  };
  if (!fits(0)) return -1;
  int low = 0;
  int high = static_cast<int>(layout.units().size());
  if (fits(high)) return high;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

std::string describe_plan(const MemoryPlan& plan) {
  const SpacePlan& device = plan.space(Space::device);
  std::string text;
  for (int category = 0; category < kCategories; ++category)
    if (const std::int64_t bytes = device.at_peak[static_cast<std::size_t>(category)]; bytes > 0)
      text += fmt::format("  {:<22}{:>18}\n", name_of(static_cast<Category>(category)), bytes);
  if (const std::int64_t lost = device.arena_bytes - device.live_peak_bytes; lost > 0)
    text += fmt::format("  {:<22}{:>18}\n", "lost between buffers", lost);
  return text + fmt::format("  {:<22}{:>18}\n", "total bytes", device.arena_bytes);
}

std::string explain_misfit(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                           const MemoryPlan& plan, std::int64_t external_bytes, std::int64_t budget_bytes) {
  const std::int64_t needed = plan.space(Space::device).arena_bytes + external_bytes;
  std::string text = fmt::format("device_memory is {} bytes, but the plan needs {}: {} bytes are missing\n{}",
                                 budget_bytes, needed, needed - budget_bytes, describe_plan(plan));
  if (external_bytes > 0) text += fmt::format("  {:<22}{:>18}\n", "external bytes", external_bytes);
  std::vector<StepSpec> tried = specs;
  std::string made;
  // One change alone first, then all of them so far.
  for (const bool cumulative : {false, true}) {
    tried = specs;
    made.clear();
    for (const Change& change : changes()) {
      if (!cumulative) {
        tried = specs;
        made.clear();
      }
      bool changed = false;
      for (StepSpec& spec : tried) changed |= change.apply(spec.strategy) && spec.order.empty();
      if (!changed) continue;
      if (tried[0].strategy.placements.parameters != Placement::sharded)
        for (StepSpec& spec : tried) spec.strategy.resident_units = 0;
      made += (made.empty() ? "" : ", ") + change.name;
      const std::int64_t bytes = arena_bytes(layout, mesh, tried) + external_bytes;
      if (bytes <= budget_bytes) return text + fmt::format("  would fit with {}: {} bytes", made, bytes);
    }
  }
  return text + "  no change of strategy fits: take more ranks, a smaller microbatch, or more memory";
}

}  // namespace tessera
