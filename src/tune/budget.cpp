#include "tessera/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "src/tune/in_parallel.h"
#include "tessera/error.h"
#include "tessera/link.h"
#include "tessera/plan_memory.h"

namespace tessera {
namespace {

// Counts of resident units that are planned one by one.
constexpr int kScanned = 32;

bool keeps_within(const MemoryBudget& budget, const Layout& layout, const Mesh& mesh,
                  const std::vector<StepSpec>& specs) {
  return budget.holds(plan_pipeline(layout, mesh, specs, budget).back().plan);
}

}  // namespace

PlannedPrograms build_and_plan(const Layout& layout, const Mesh& mesh, std::span<const StepSpec> specs,
                               int pipeline_rank, int data_rank) {
  PlannedPrograms result{.programs = {}, .plan = {}, .first_data_rank = data_rank};
  for (const StepSpec& spec : specs)
    result.programs.push_back(build_step(layout, mesh, spec, pipeline_rank, data_rank));
  for (const StepSpec& spec : specs) {  // behind all of these: what a step leaves, between steps
    if (spec.kind != StepKind::train || spec.strategy.update != UpdateWhen::next) continue;
    StepSpec finish = spec;
    finish.kind = StepKind::finish;
    result.programs.push_back(build_step(layout, mesh, finish, pipeline_rank, data_rank));
  }
  std::int64_t guard_bytes = 0;
  for (const StepSpec& spec : specs) guard_bytes = std::max(guard_bytes, spec.guard_bytes);
  result.plan = plan_memory(result.programs, guard_bytes);
  for (std::size_t index = 0; index < result.programs.size(); ++index)
    link(result.programs[index], &result.plan, static_cast<int>(index));
  return result;
}

std::vector<PlannedPrograms> plan_pipeline(const Layout& layout, const Mesh& mesh,
                                           std::span<const StepSpec> specs, const MemoryBudget& budget) {
  mesh.world();  // its checks
  const IdVector<int> data_ranks = first_data_ranks(specs);
  std::vector<PlannedPrograms> of_ranks(data_ranks.size() * static_cast<std::size_t>(mesh.pipeline));
  const std::size_t planned = in_parallel(of_ranks.size(), [&](std::size_t k) {
    const auto [set, rank] = std::div(static_cast<std::int64_t>(k), std::int64_t{mesh.pipeline});
    of_ranks[k] = build_and_plan(layout, mesh, specs, static_cast<int>(rank), data_ranks[set]);
    return budget.holds(of_ranks[k].plan);
  });
  of_ranks.resize(planned);
  return of_ranks;
}

int fit_resident_units(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                       const MemoryBudget& budget) {
  const auto fits = [&](int count) {
    for (StepSpec& spec : specs) spec.strategy.resident_units = count;
    return keeps_within(budget, layout, mesh, specs);
  };
  const int units = layout.units().count();
  const int parts = std::min(units, kScanned);
  const auto count_at = [&](int part) { return static_cast<int>(std::int64_t{units} * part / parts); };
  if (fits(units)) return units;
  int low = 0, high = units;  // which does not fit
  if (units <= kScanned || !fits(0)) {
    int part = parts - 1;
    while (part >= 0 && !fits(count_at(part))) --part;
    if (part < 0) return -1;
    low = count_at(part), high = count_at(part + 1);
  }
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

void MemoryBudget::check() const {
  const auto check_bytes = [](const std::string& name, std::int64_t bytes) {
    if (bytes < 0) throw UsageError(fmt::format("{} is {} bytes; it must be 0 or more", name, bytes));
  };
  check_bytes(names.device, device_bytes);
  check_bytes(names.host, host_bytes);
  check_bytes(names.external, external_bytes);
}

std::int64_t MemoryBudget::missing_bytes(const MemoryPlan& plan) const {
  const auto missing = [&plan](Space space, std::int64_t budget, std::int64_t external) -> std::int64_t {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;
    // Two figures that are not negative: their difference does not overflow. That from the arena may.
    const std::int64_t arena = plan.space(space).arena_bytes, left = budget - external;
    std::int64_t bytes = 0;
    if (budget == 0 || arena <= left) return 0;
    return __builtin_sub_overflow(arena, left, &bytes) ? kMost : std::min(bytes, kMost);
  };
  return missing(Space::device, device_bytes, external_bytes) + missing(Space::host, host_bytes, 0);
}

std::string describe_plan(const MemoryPlan& plan, Space space) {
  const SpacePlan& of = plan.space(space);
  std::string text;
  for (int category = 0; category < kCategories; ++category)
    if (const std::int64_t bytes = of.at_peak[category]; bytes > 0)
      text += fmt::format("  {:<22}{:>18}\n", name_of(static_cast<Category>(category)), bytes);
  if (const std::int64_t lost = of.arena_bytes - of.live_peak_bytes; lost > 0)
    text += fmt::format("  {:<22}{:>18}\n", "lost between buffers", lost);
  return text + fmt::format("  {:<22}{:>18}\n", "total bytes", of.arena_bytes);
}

}  // namespace tessera
