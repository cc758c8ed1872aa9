// How many units' optimizer states stay on the device: every count is planned and simulated.
#include <algorithm>

#include "tessera/budget.h"

namespace tessera {
namespace {

// What a budget and a clock say of one strategy, over all pipeline ranks.
struct Figures {
  std::int64_t arena_bytes = 0;
  double step_us = 0;
};

Figures figures_of(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                   const CostModel& cost) {
  Figures most;
  for (const PlannedPrograms& planned : plan_pipeline(layout, mesh, specs)) {
    most.arena_bytes = std::max(most.arena_bytes, planned.plan.space(Space::device).arena_bytes);
    for (const Program& program : planned.programs)
      if (program.kind == StepKind::train)
        most.step_us = std::max(most.step_us, simulate(program, layout, mesh, cost).total_us);
  }
  return most;
}

}  // namespace

double choose_states_on_device(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                               const CostModel& cost, std::int64_t budget_bytes) {
  const auto units = static_cast<int>(layout.units().size());
  double chosen = -1, least_us = 0;
  for (int count = 0; count <= units; ++count) {
    const double share = static_cast<double>(count) / units;
    for (StepSpec& spec : specs) spec.strategy.offload.states_on_device = share;
    const Figures figures = figures_of(layout, mesh, specs, cost);
    if (figures.arena_bytes > budget_bytes) break;  // each unit more takes more
    if (chosen >= 0 && figures.step_us > least_us) continue;
    chosen = share;
    least_us = figures.step_us;
  }
  return chosen;
}

}  // namespace tessera
