#include "src/engine/c_api_options.h"

#include <fmt/format.h>

#include "src/engine/c_api_support.h"

namespace tessera::c_api {
namespace {

ParameterSpec to_spec(const tessera_parameter& parameter) {
  ParameterSpec spec;
  spec.name = &given(parameter.name, "tessera_parameter.name");
  for (const std::int64_t dim : span_of(parameter.shape, parameter.dims, "tessera_parameter.shape"))
    spec.shape.push_back(dim);
  spec.dtype = checked<DType>(parameter.dtype, 3, "tessera_parameter.dtype");
  spec.trainable = parameter.frozen == 0;
  spec.group = parameter.group;
  if (parameter.tied_to != nullptr) spec.tied_to = parameter.tied_to;
  return spec;
}

OptimizerOptions to_optimizer_options(const tessera_options& o) {
  switch (o.optimizer) {
    case TESSERA_ADAMW:
      return AdamWOptions{o.beta1, o.beta2, o.epsilon, o.weight_decay};
    case TESSERA_ADAM:
      return AdamOptions{o.beta1, o.beta2, o.epsilon, o.weight_decay};
    case TESSERA_SGD:
      return SgdOptions{o.momentum, o.nesterov != 0, o.weight_decay};
    default:
      throw UsageError(fmt::format(
          "optimizer {} is not known; use TESSERA_ADAMW, TESSERA_ADAM or TESSERA_SGD", o.optimizer));
  }
}

Optimizer to_optimizer(const tessera_options& o) {
  Optimizer optimizer;
  optimizer.options = to_optimizer_options(o);
  if (o.groups == nullptr && o.group_count == 0) return optimizer;
  optimizer.groups.clear();
  for (const tessera_group& group : span_of(o.groups, o.group_count, "groups")) {
    ParameterGroup& added = optimizer.groups.emplace_back();
    added.name = &given(group.name, "tessera_group.name");
    if (group.own_weight_decay != 0) added.weight_decay = group.weight_decay;
    added.learning_rate_factor = group.learning_rate_factor;
  }
  return optimizer;
}

void check_bytes(std::size_t bytes) {
  if (bytes != sizeof(tessera_options))
    throw UsageError(
        fmt::format("tessera_options has {} bytes here and {} in the caller: use the header of "
                    "this library, and tessera_options_init",
                    sizeof(tessera_options), bytes));
}

// The numbers of the header are those of the enumerators.
static_assert(TESSERA_FP16 == static_cast<int>(DType::fp16) &&
              TESSERA_BACKWARD == static_cast<int>(Pass::backward) &&
              TESSERA_CLOSE == static_cast<int>(UseEdge::close) &&
              TESSERA_REDUCE_LAST == static_cast<int>(ReduceWhen::last));

}  // namespace

std::vector<UnitSpec> to_specs(const tessera_unit* units, std::int32_t count) {
  std::vector<UnitSpec> specs;
  for (const tessera_unit& unit : span_of(units, count, "units")) {
    UnitSpec& spec = specs.emplace_back();
    spec.name = &given(unit.name, "tessera_unit.name");
    for (const tessera_parameter& parameter :
         span_of(unit.parameters, unit.parameter_count, "tessera_unit.parameters"))
      spec.parameters.push_back(to_spec(parameter));
  }
  return specs;
}

EngineOptions to_options(const tessera_options& o, int ranks) {
  check_bytes(o.struct_bytes);
  EngineOptions options;
  options.mesh.replicate = o.replicate;
  options.mesh.shard = o.shard == 0 ? ranks : o.shard;
  options.strategy.placements = Placements::of_stage(o.stage);
  options.strategy.reduce = checked<ReduceWhen>(o.reduce, 3, "reduce");
  options.strategy.prefetch = o.prefetch;
  options.strategy.resident_units = o.resident_units;
  options.programs = {{.kind = StepKind::train, .microbatches = o.microbatches}};
  if (o.evaluation != 0) options.programs.push_back({.kind = StepKind::evaluate});
  for (const tessera_use& use : span_of(o.order, o.order_count, "order"))
    options.order.push_back({.unit = use.unit,
                             .pass = checked<Pass>(use.pass, 3, "tessera_use.pass"),
                             .edge = checked<UseEdge>(use.edge, 3, "tessera_use.edge")});
  options.optimizer = to_optimizer(o);
  options.clip.max_norm = o.clip;
  if (o.initial_loss_scale != 0) options.loss_scaling = LossScaleOptions{.initial = o.initial_loss_scale};
  options.device_memory_bytes = o.device_memory_bytes;
  options.external_bytes = o.external_bytes;
  options.zero_gradients = o.zero_gradients != 0;
  options.threads_per_rank = o.threads;
  options.deadline = checked_deadline(o.deadline_ms);
  return options;
}

}  // namespace tessera::c_api

using namespace tessera;
using namespace tessera::c_api;

tessera_status tessera_options_init(tessera_options* options, size_t bytes) {
  return guarded([&] {
    check_bytes(bytes);
    tessera_options& defaults = given(options, "options") = {};
    defaults.struct_bytes = bytes;
    defaults.replicate = 1;
    defaults.prefetch = 1;
    defaults.microbatches = 1;
    defaults.beta1 = 0.9;
    defaults.beta2 = 0.999;
    defaults.epsilon = 1e-8;
    defaults.threads = 1;
    defaults.deadline_ms = 60'000;
  });
}
