#include "src/engine/figures.h"

#include <variant>

#include "tessera/optimizer_fields.h"

namespace tessera {

void add_optimizer(Figures& figures, const Optimizer& optimizer) {
  figures.add("optimizer", optimizer.name());
  OptimizerOptions options = optimizer.options;
  for (const OptimizerField& field : fields_of(options))
    std::visit([&](const auto* value) { figures.add(fmt::format("optimizer.{}", field.name), *value); },
               field.value);
  figures.add("optimizer.moment_type", name_of(optimizer.moment_type));
  for (std::size_t group = 0; group < optimizer.groups.size(); ++group) {
    const ParameterGroup& of = optimizer.groups[group];
    const std::string name = fmt::format("optimizer.groups[{}].", group);
    figures.add(name + "weight_decay",
                of.weight_decay ? fmt::format("{}", *of.weight_decay) : "the optimizer's");
    figures.add(name + "learning_rate_factor", of.learning_rate_factor);
  }
}

void add_scaling(Figures& figures, const std::optional<LossScaleOptions>& scaling) {
  figures.add("loss_scaling", scaling ? "given" : "absent");
  if (!scaling) return;
  figures.add("loss_scaling.initial", scaling->initial);
  figures.add("loss_scaling.growth_factor", scaling->growth_factor);
  figures.add("loss_scaling.growth_interval", scaling->growth_interval);
  figures.add("loss_scaling.backoff_factor", scaling->backoff_factor);
  figures.add("loss_scaling.min", scaling->min);
  figures.add("loss_scaling.max", scaling->max);
}

namespace {

// Nothing with one tensor rank, where cuts without blocks do nothing.
std::string over_tensor_ranks(const Layout& layout, const ParameterSpec& parameter) {
  if (layout.tensor() == 1 && parameter.cut.blocks == 1) return {};
  if (parameter.cut.dim >= 0) return fmt::format(", cut along {}", to_string(parameter.cut));
  return parameter.gradient == GradientOver::partial ? ", of partial gradient" : "";
}

}  // namespace

void add_units(Figures& figures, const Layout& layout) {
  figures.add("the number of units", layout.units().size());
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
    const UnitSpec& spec = layout.units()[unit];
    figures.add(fmt::format("unit {}", unit),
                fmt::format("'{}'{}", spec.name, spec.read_in_forward_only ? ", read in forward only" : ""));
    for (const ParameterSpec& p : spec.parameters)
      figures.add(fmt::format("parameter '{}' of unit '{}'", p.name, spec.name),
                  fmt::format("{} in {}{}, in group {}{}", to_string(p.shape), name_of(p.dtype),
                              p.trainable ? "" : ", frozen", p.group,
                              p.tied_to.empty() ? "" : fmt::format(", tied to '{}'", p.tied_to)) +
                      over_tensor_ranks(layout, p));
  }
}

void add_order(Figures& figures, const std::vector<Use>& order) {
  figures.add("order", order.empty() ? "the default" : fmt::format("of {} uses", order.size()));
  for (std::size_t use = 0; use < order.size(); ++use)
    figures.add(fmt::format("order[{}]", use),
                fmt::format("{} of unit {}{}", name_of(order[use].pass), order[use].unit,
                            order[use].edge == UseEdge::whole  ? ""
                            : order[use].edge == UseEdge::open ? ", opening"
                                                               : ", closing"));
}

}  // namespace tessera
