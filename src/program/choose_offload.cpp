// How many units' optimizer states stay on the device: every count is planned and simulated.
#include <algorithm>

#include "tessera/budget.h"

namespace tessera {
namespace {

// What a budget and a clock say of one strategy: of the fullest pipeline rank, and of the step of all.
struct Figures {
  std::int64_t arena_bytes = 0;
  double step_us = 0;
};

Figures figures_of(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                   const CostModel& cost) {
  Figures figures;
  std::vector<std::vector<Program>> training;  // by program of a trainer, those of all ranks
  for (PlannedPrograms& planned : plan_pipeline(layout, mesh, specs)) {
    figures.arena_bytes = std::max(figures.arena_bytes, planned.plan.space(Space::device).arena_bytes);
    training.resize(planned.programs.size());
    for (std::size_t k = 0; k < training.size(); ++k)
      if (planned.programs[k].kind == StepKind::train) training[k].push_back(std::move(planned.programs[k]));
  }
  for (const std::vector<Program>& programs : training)
    if (!programs.empty())
      figures.step_us +=
          simulate({.mesh = mesh, .programs = programs, .program_of_rank = mesh.places(Axis::pipeline)},
                   layout, cost)
              .total_us;
  return figures;
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
