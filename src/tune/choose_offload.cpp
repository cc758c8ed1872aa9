// How many units' optimizer states stay on the device: every count is planned and simulated.
#include <optional>
#include <utility>

#include "src/simulate/step_time.h"
#include "tessera/budget.h"

namespace tessera {
namespace {

// Of the step of all ranks; nothing where a rank exceeds the budget.
std::optional<double> steps_us(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                               const CostModel& cost, const MemoryBudget& budget) {
  std::vector<PlannedPrograms> of_ranks = plan_pipeline(layout, mesh, specs, budget);
  if (!budget.holds(of_ranks.back().plan)) return std::nullopt;
  std::vector<std::vector<Program>> training(of_ranks[0].programs.size());  // by program of a trainer
  for (PlannedPrograms& planned : of_ranks) {
    if (planned.first_data_rank > 0) continue;  // the others have most microbatches
    for (std::size_t k = 0; k < training.size(); ++k)
      if (planned.programs[k].kind == StepKind::train) training[k].push_back(std::move(planned.programs[k]));
  }
  double us = 0;
  for (const std::vector<Program>& programs : training)
    if (!programs.empty()) us += step_us(layout, mesh, programs, cost);
  return us;
}

}  // namespace

double choose_states_on_device(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                               const CostModel& cost, const MemoryBudget& budget) {
  const auto units = layout.units().count();
  double chosen = -1, least_us = 0;
  for (int count = 0; count <= units; ++count) {
    const double share = static_cast<double>(count) / units;
    for (StepSpec& spec : specs) spec.strategy.offload.states_on_device = share;
    const std::optional<double> us = steps_us(layout, mesh, specs, cost, budget);
    if (!us || (chosen >= 0 && *us > least_us)) continue;
    chosen = share;
    least_us = *us;
  }
  return chosen;
}

}  // namespace tessera
