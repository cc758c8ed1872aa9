#include "src/engine/figures.h"

namespace tessera {

Numerics numerics_of(const Layout& layout, const EngineOptions& options, Numerics of_programs) {
  Figures figures;
  add_units(figures, layout);
  for (const NumericFact& fact : options.compute) figures.add(fact.what, fact.value);
  if (options.compute.empty()) figures.add("the compute", "not known");
  if (!options.order.empty()) add_order(figures, options.order);
  add_optimizer(figures, options.optimizer);
  figures.add("clip.max_norm", options.clip.max_norm);
  add_scaling(figures, options.loss_scaling);
  figures.add("zero_gradients", options.zero_gradients);
  const Strategy& strategy = options.strategy;
  figures.add(kUpdateWaits, strategy.update == UpdateWhen::reduced ? "no" : "yes");
  const bool native = strategy.reduction == Reduction::native && options.mesh.data_ranks() > 1;
  figures.add(
      "the reduction",
      native ? fmt::format("native, of {}, parameters {}, gradients {}", to_string(options.mesh),
                           name_of(strategy.placements.parameters), name_of(strategy.placements.gradients))
             : "exact");
  of_programs.run = figures.take();
  return of_programs;
}

}  // namespace tessera
