#include "src/engine/figures.h"

#include "tessera/engine_options.h"
#include "tessera/prove.h"

namespace tessera {
namespace {

// As the executor makes its lanes.
IssuerRuns issuer_runs(const EngineOptions& options) {
  if (options.device != DeviceType::cpu) return IssuerRuns::nothing;
  return options.debug.strict_order ? IssuerRuns::all_but_messages : IssuerRuns::compute;
}

// All facts but those of the programs.
std::vector<NumericFact> facts_of_run(const Layout& layout, const EngineOptions& options) {
  Figures figures;
  add_units(figures, layout);
  for (const NumericFact& fact : options.compute) figures.add(fact.what, fact.value);
  if (options.compute.empty()) figures.add("the compute", "not known");
  if (!options.order.empty()) add_order(figures, options.order);
  add_optimizer(figures, options.optimizer);
  figures.add("clip.max_norm", options.clip.max_norm);
  add_scaling(figures, options.loss_scaling);
  figures.add("zero_gradients", !options.overwrites_gradients);
  const Strategy& strategy = options.strategy;
  figures.add(kUpdateWaits, strategy.update == UpdateWhen::reduced ? "no" : "yes");
  const bool native = strategy.reduction == Reduction::native && options.mesh.data_ranks() > 1;
  figures.add(
      "the reduction",
      native ? fmt::format("native, of {}, parameters {}, gradients {}", to_string(options.mesh),
                           name_of(strategy.placements.parameters), name_of(strategy.placements.gradients))
             : "exact");
  if (options.splits_layers && options.mesh.tensor > 1)
    figures.add("the tensor ranks among which the trainer splits layers", options.mesh.tensor);
  return figures.take();
}

}  // namespace

Numerics prove_engine(const Layout& layout, const EngineOptions& options,
                      std::span<const RankPrograms> of_ranks) {
  Numerics numerics;
  require_proved(
      prove_all(options.mesh, layout, of_ranks,
                {.starts_in_order = options.device == DeviceType::cuda, .issuer_runs = issuer_runs(options)},
                &numerics));
  numerics.run = facts_of_run(layout, options);
  return numerics;
}

}  // namespace tessera
