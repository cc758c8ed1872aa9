#include "tessera/budget.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {
namespace {

// Of the pipeline rank that needs most.
std::int64_t arena_bytes(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs) {
  std::int64_t most = 0;
  for (const PlannedPrograms& planned : plan_pipeline(layout, mesh, specs))
    most = std::max(most, planned.plan.space(Space::device).arena_bytes);
  return most;
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

std::vector<PlannedPrograms> plan_pipeline(const Layout& layout, const Mesh& mesh,
                                           std::span<const StepSpec> specs) {
  mesh.world();  // its checks
  std::vector<PlannedPrograms> by_rank;
  by_rank.reserve(static_cast<std::size_t>(mesh.pipeline));
  for (int rank = 0; rank < mesh.pipeline; ++rank)
    by_rank.push_back(build_and_plan(layout, mesh, specs, rank));
  return by_rank;
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

bool MemoryBudget::holds(const MemoryPlan& plan) const {
  // Two figures that are not negative: their difference does not overflow.
  const auto holds = [&plan](Space space, std::int64_t budget, std::int64_t external) {
    return budget == 0 || plan.space(space).arena_bytes <= budget - external;
  };
  return holds(Space::device, device_bytes, external_bytes) && holds(Space::host, host_bytes, 0);
}

std::string describe_plan(const MemoryPlan& plan, Space space) {
  const SpacePlan& of = plan.space(space);
  std::string text;
  for (int category = 0; category < kCategories; ++category)
    if (const std::int64_t bytes = of.at_peak[static_cast<std::size_t>(category)]; bytes > 0)
      text += fmt::format("  {:<22}{:>18}\n", name_of(static_cast<Category>(category)), bytes);
  if (const std::int64_t lost = of.arena_bytes - of.live_peak_bytes; lost > 0)
    text += fmt::format("  {:<22}{:>18}\n", "lost between buffers", lost);
  return text + fmt::format("  {:<22}{:>18}\n", "total bytes", of.arena_bytes);
}

}  // namespace tessera
