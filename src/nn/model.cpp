#include <fmt/format.h>

#include "tessera/error.h"
#include "tessera/module.h"

namespace tessera {

std::vector<UnitSpec> Model::units() const {
  if (names.size() != modules.size())
    throw UsageError(fmt::format("model '{}' has {} modules and {} unit names; it needs one name a module",
                                 name, modules.size(), names.size()));
  std::vector<UnitSpec> units;
  units.reserve(modules.size());
  for (std::size_t unit = 0; unit < modules.size(); ++unit) {
    if (!modules[unit])
      throw UsageError(fmt::format("model '{}': the module of '{}' is null", name, names[unit]));
    units.push_back({.name = names[unit],
                     .parameters = modules[unit]->parameters(),
                     .read_in_forward_only = modules[unit]->parameters_read_in_forward_only()});
  }
  return units;
}

ActivationSpec Model::activations(const BatchShape& shape, const Target& target) const {
  ActivationSpec spec;
  spec.units.reserve(modules.size());
  for (const auto& module : modules) {
    spec.units.push_back(module->needs(shape, target).activations);
    spec.units.back().keeps_more = false;  // a module owns no memory
  }
  spec.batch_bytes = batch_bytes ? batch_bytes(shape) : 0;
  return spec;
}

void* ModuleContext::value(ValueId id) const {
  switch (id) {
    case SharedValue::batch:
      return batch;
    case SharedValue::input:
      return input;
    case SharedValue::output:
      return output;
    case SharedValue::output_gradient:
      return output_gradient;
    case SharedValue::input_gradient:
      return input_gradient;
    default:
      return values[static_cast<std::size_t>(id)];
  }
}

IdVector<IdVector<double>> Model::part_flops(const BatchShape& shape, const Target& target) const {
  IdVector<IdVector<double>> flops;
  flops.reserve(modules.size());
  for (const auto& module : modules) {
    const ModuleNeeds needs = module->needs(shape, target);
    IdVector<double>& of_unit = flops.emplace_back();
    for (const PartSpec& part : needs.activations.parts) of_unit.push_back(part.flops);
  }
  return flops;
}

IdVector<double> Model::forward_flops(const BatchShape& shape, const Target& target) const {
  IdVector<double> flops;
  flops.reserve(modules.size());
  for (const auto& module : modules)
    flops.push_back(module->needs(shape, target).activations.flops(Pass::forward));
  return flops;
}

std::string Module::numerics(const BatchShape&, const Target&) const { return {}; }

std::vector<NumericFact> Model::numerics(const BatchShape& shape, const Target& target,
                                         std::uint64_t seed) const {
  std::vector<NumericFact> facts = {
      {"the microbatch", fmt::format("{} of length {}", shape.sequences, shape.length)},
      {std::string(kSeed), std::to_string(seed)}};
  for (std::size_t unit = 0; unit < modules.size(); ++unit) {
    std::string words = modules[unit]->numerics(shape, target);
    facts.push_back({fmt::format("the compute of unit '{}'", names[unit]),
                     words.empty() ? "not known" : std::move(words)});
  }
  return facts;
}

double Model::flops_per_token(std::int64_t length) const {
  const BatchShape one{.sequences = tensor_blocks, .length = length};  // of which a block has tokens
  double flops = 0;
  for (const auto& module : modules) {
    const ModuleNeeds needs = module->needs(one, 1);
    const double forward = needs.activations.flops(Pass::forward) + needs.masked_flops;
    flops += 3 * forward - needs.frozen_flops;  // backward is twice forward
  }
  return flops / static_cast<double>(one.tokens());
}

namespace {

template <class Counts>
std::int64_t numel_where(const Model& model, const Counts& counts) {
  std::int64_t numel = 0;
  for (const auto& module : model.modules)
    for (const ParameterSpec& parameter : module->parameters())
      if (parameter.tied_to.empty() && counts(parameter)) numel += numel_of(parameter.shape);
  return numel;
}

}  // namespace

std::int64_t Model::parameter_numel() const {
  return numel_where(*this, [](const ParameterSpec&) { return true; });
}

std::int64_t Model::trained_numel() const {
  return numel_where(*this, [](const ParameterSpec& parameter) { return parameter.trainable; });
}

}  // namespace tessera
