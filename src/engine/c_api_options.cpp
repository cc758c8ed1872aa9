#include "src/engine/c_api_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "src/engine/c_api_support.h"
#include "tessera/optimizer_fields.h"
#include "tessera/pipeline.h"

namespace tessera::c_api {
namespace {

Cut to_cut(const tessera_cut& cut, const std::string& parameter) {
  if (cut.dim < 0)
    throw UsageError(fmt::format("tessera_cut.dim of '{}' is {}; use a dim of its shape, from 0, or no cut",
                                 parameter, cut.dim));
  Cut to{.dim = cut.dim, .padded = cut.padded != 0};
  for (const std::int64_t length : span_of(cut.segments, cut.segment_count, "tessera_cut.segments"))
    to.segments.push_back(length);
  return to;
}

// A gradient that is partial belongs to a copy.
GradientOver to_gradient(const tessera_parameter& parameter) {
  const auto gradient =
      checked<GradientOver>(parameter.gradient_over_tensor, 2, "tessera_parameter.gradient_over_tensor");
  if (gradient == GradientOver::partial && (parameter.cut != nullptr || parameter.frozen != 0))
    throw UsageError(fmt::format(
        "gradient_over_tensor of '{}' is TESSERA_GRADIENT_PARTIAL, but the parameter is {}; leave it at 0",
        parameter.name,
        parameter.cut != nullptr ? "cut, so each rank makes the gradient of its own share"
                                 : "frozen and has no gradient"));
  return gradient;
}

ParameterSpec to_spec(const tessera_parameter& parameter) {
  ParameterSpec spec;
  spec.name = &given(parameter.name, "tessera_parameter.name");
  for (const std::int64_t dim : span_of(parameter.shape, parameter.dims, "tessera_parameter.shape"))
    spec.shape.push_back(dim);
  spec.dtype = checked<DType>(parameter.dtype, 3, "tessera_parameter.dtype");
  spec.trainable = parameter.frozen == 0;
  spec.group = parameter.group;
  if (parameter.tied_to != nullptr) spec.tied_to = parameter.tied_to;
  if (parameter.cut != nullptr) spec.cut = to_cut(*parameter.cut, spec.name);
  spec.gradient = to_gradient(parameter);
  return spec;
}

constexpr std::int64_t kMostUnitBytes = std::int64_t{1} << 50;  // so that sums of them can be told

// "TESSERA_ADAMW, TESSERA_ADAM or TESSERA_SGD"
std::string constants_of(std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "TESSERA_" : i + 1 == names.size() ? " or TESSERA_" : ", TESSERA_";
    for (const char c : names[i]) text += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return text;
}

// The members of tessera_options that are fields of optimizers.
struct NumberMember {
  std::string_view name;
  double tessera_options::*member;
};
struct SwitchMember {
  std::string_view name;
  std::int32_t tessera_options::*member;
};
constexpr NumberMember kNumbers[] = {{"beta1", &tessera_options::beta1},
                                     {"beta2", &tessera_options::beta2},
                                     {"epsilon", &tessera_options::epsilon},
                                     {"weight_decay", &tessera_options::weight_decay},
                                     {"momentum", &tessera_options::momentum}};
constexpr SwitchMember kSwitches[] = {{"nesterov", &tessera_options::nesterov}};

void set_field(const OptimizerField& field, const tessera_options& o) {
  const auto set = [&](auto* value, const auto& members) {
    const auto found = std::ranges::find(members, field.name, [](const auto& row) { return row.name; });
    if (found == std::end(members))
      throw UnsupportedError(
          fmt::format("tessera_options has no member '{}'; use this optimizer from C++", field.name));
    *value = static_cast<std::remove_pointer_t<decltype(value)>>(o.*found->member);
  };
  if (double* const* number = std::get_if<double*>(&field.value)) return set(*number, kNumbers);
  set(std::get<bool*>(field.value), kSwitches);
}

OptimizerOptions to_optimizer_options(const tessera_options& o) {
  const IdVector<std::string_view> names = optimizer_names();
  if (o.optimizer < 0 || o.optimizer >= names.count())
    throw UsageError(fmt::format("optimizer {} is not known; use {}", o.optimizer, constants_of(names)));
  OptimizerOptions options = optimizer_options(names[o.optimizer]);
  bool has_momentum = false;
  for (const OptimizerField& field : fields_of(options)) {
    set_field(field, o);
    has_momentum |= field.name == "momentum";
  }
  if (!has_momentum && (o.momentum != 0 || o.nesterov != 0))
    throw UsageError(
        fmt::format("momentum is {} and nesterov {}, which the optimizer {} does not have: leave them at 0",
                    o.momentum, o.nesterov, names[o.optimizer]));
  return options;
}

Optimizer to_optimizer(const tessera_options& o) {
  Optimizer optimizer;
  optimizer.options = to_optimizer_options(o);
  optimizer.moment_type = checked<DType>(o.moment_type, 3, "moment_type");
  if (o.groups == nullptr && o.group_count == 0) return optimizer;
  optimizer.groups.clear();
  for (const tessera_group& group : span_of(o.groups, o.group_count, "groups")) {
    ParameterGroup& added = optimizer.groups.emplace_back();
    added.name = &given(group.name, "tessera_group.name");
    if (group.own_weight_decay != 0) added.weight_decay = group.weight_decay;
    if (group.own_learning_rate_factor != 0)
      added.learning_rate_factor = group.learning_rate_factor;
    else if (group.learning_rate_factor != 0 && group.learning_rate_factor != 1)
      throw UsageError(
          fmt::format("learning_rate_factor of group '{}' is {} and own_learning_rate_factor 0, with which "
                      "it would be 1: set "
                      "that to 1, or leave the factor at 0",
                      added.name, group.learning_rate_factor));
  }
  return optimizer;
}

Mesh to_mesh(const tessera_options& o, int ranks) {
  Mesh mesh{.pipeline = o.pipeline, .replicate = o.replicate, .shard = o.shard, .tensor = o.tensor};
  if (mesh.shard != 0) return mesh;
  const int others = Mesh{.pipeline = std::max(1, mesh.pipeline),
                          .replicate = std::max(1, mesh.replicate),
                          .tensor = std::max(1, mesh.tensor)}
                         .world();
  if (ranks % others != 0)
    throw UsageError(
        fmt::format("shard is 0, what the other axes leave, but pipeline {}, replicate {} and tensor {} do "
                    "not divide {} ranks",
                    o.pipeline, o.replicate, o.tensor, ranks));
  mesh.shard = ranks / others;
  return mesh;
}

Pipeline to_pipeline(const tessera_options& o) {
  Pipeline pipeline{.schedule = checked<PipelineSchedule>(
                        o.schedule, static_cast<int>(pipeline_schedule_names().size()), "schedule"),
                    .chunks = o.chunks,
                    .cuts = {},
                    .gather_once = o.gather_once != 0};
  for (const std::int32_t cut : span_of(o.cuts, o.cut_count, "cuts")) pipeline.cuts.push_back(cut);
  return pipeline;
}

Offload to_offload(const tessera_options& o) {
  return {.states = checked<Space>(o.states, kSpaces, "states"),
          .states_on_device = o.states_on_device,
          .parameters = checked<Space>(o.parameters, kSpaces, "parameters"),
          .staged = o.staged,
          .activations = checked<Space>(o.activations, 2, "activations")};  // never the disk
}

std::optional<LossScaleOptions> to_loss_scaling(const tessera_options& o) {
  if (o.initial_loss_scale == 0) return std::nullopt;
  return LossScaleOptions{.initial = o.initial_loss_scale,
                          .growth_factor = o.loss_scale_growth_factor,
                          .growth_interval = o.loss_scale_growth_interval,
                          .backoff_factor = o.loss_scale_backoff_factor,
                          .min = o.min_loss_scale,
                          .max = o.max_loss_scale};
}

std::int64_t checked_unit_bytes(std::int64_t bytes, const char* field, const tessera_unit& unit) {
  if (bytes < 0 || bytes > kMostUnitBytes)
    throw UsageError(
        fmt::format("tessera_unit.{} of '{}' is {}; use 0 to {}", field, unit.name, bytes, kMostUnitBytes));
  return bytes;
}

// None where no unit has any: the caller's activations are all its own.
ActivationSpec to_activations(std::span<const tessera_unit> units) {
  ActivationSpec spec;
  bool any = false;
  for (const tessera_unit& unit : units) {
    const UnitActivations of{
        .output_bytes = checked_unit_bytes(unit.output_bytes, "output_bytes", unit),
        .saved_bytes = checked_unit_bytes(unit.saved_bytes, "saved_bytes", unit),
        .recomputable_bytes = checked_unit_bytes(unit.recomputable_bytes, "recomputable_bytes", unit),
        .workspace_bytes = checked_unit_bytes(unit.workspace_bytes, "workspace_bytes", unit),
        .reads_batch = false,
        .splits_backward = unit.splits_backward != 0};
    spec.units.push_back(of);
    any |= of.splits_backward || of.output_bytes > 0 || of.saved_bytes > 0 || of.recomputable_bytes > 0 ||
           of.workspace_bytes > 0;
  }
  return any ? spec : ActivationSpec{};
}

// How a training step's microbatches are dealt to the data ranks.
Rounds to_rounds(const tessera_options& o, const Mesh& mesh) {
  if (o.microbatches_per_step == 0) return {.count = o.microbatches};
  if (o.microbatches_per_step < 0)
    throw UsageError(
        fmt::format("tessera_options.microbatches_per_step is {}; use 1 or more, or 0 for as many as "
                    "microbatches says of each rank",
                    o.microbatches_per_step));
  const Rounds rounds = Rounds::of(o.microbatches_per_step, mesh, o.blocks);
  if (o.microbatches != 1 && o.microbatches != rounds.count)
    throw UsageError(
        fmt::format("tessera_options.microbatches_per_step is {} and microbatches {}: with {} ranks along "
                    "shard and replicate a step has {} of a rank; leave microbatches at 1",
                    o.microbatches_per_step, o.microbatches, mesh.data_ranks(), rounds.count));
  return rounds;
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
              TESSERA_WEIGHT_GRADIENT == static_cast<int>(Pass::weight_gradient) &&
              TESSERA_LOOPED == static_cast<int>(PipelineSchedule::looped) &&
              TESSERA_ZB_H1 == static_cast<int>(PipelineSchedule::zb_h1) &&
              TESSERA_ZB_V == static_cast<int>(PipelineSchedule::zb_v) &&
              TESSERA_CLOSE == static_cast<int>(UseEdge::close) &&
              TESSERA_DISK == static_cast<int>(Space::disk) &&
              TESSERA_HOST == static_cast<int>(Space::host) &&
              TESSERA_RECOMPUTE_FULL == static_cast<int>(Recompute::full) &&
              TESSERA_REDUCE_LAST == static_cast<int>(ReduceWhen::last) &&
              TESSERA_CUDA == static_cast<int>(DeviceType::cuda) &&
              TESSERA_GRADIENT_PARTIAL == static_cast<int>(GradientOver::partial) &&
              TESSERA_REDUCTION_NATIVE == static_cast<int>(Reduction::native));

}  // namespace

std::vector<UnitSpec> to_specs(const tessera_unit* units, std::int32_t count) {
  std::vector<UnitSpec> specs;
  for (const tessera_unit& unit : span_of(units, count, "units")) {
    UnitSpec& spec = specs.emplace_back();
    spec.name = &given(unit.name, "tessera_unit.name");
    spec.read_in_forward_only = unit.read_in_forward_only != 0;
    for (const tessera_parameter& parameter :
         span_of(unit.parameters, unit.parameter_count, "tessera_unit.parameters"))
      spec.parameters.push_back(to_spec(parameter));
  }
  return specs;
}

EngineOptions to_options(const tessera_options& o, std::span<const tessera_unit> units, int ranks) {
  check_bytes(o.struct_bytes);
  EngineOptions options;
  options.mesh = to_mesh(o, ranks);
  options.strategy.placements = Placements::of_stage(o.stage);
  options.strategy.reduce = checked<ReduceWhen>(o.reduce, 3, "reduce");
  options.strategy.reduction = checked<Reduction>(o.reduction, 2, "reduction");
  options.strategy.blocks = o.blocks;
  options.strategy.update = checked<UpdateWhen>(o.update, 3, "update");
  options.strategy.prefetch = o.prefetch;
  options.strategy.recompute = checked<Recompute>(o.recompute, 3, "recompute");
  options.strategy.resident_units = o.resident_units;
  options.strategy.state_over_replicas = o.state_over_replicas != 0;
  options.strategy.parameters_over_replicas = o.parameters_over_replicas != 0;
  options.strategy.pipeline = to_pipeline(o);
  options.strategy.offload = to_offload(o);
  if (o.disk_directory != nullptr) options.disk_directory = o.disk_directory;
  const ActivationSpec activations = to_activations(units);
  const Rounds rounds = to_rounds(o, options.mesh);
  options.programs = {{.kind = StepKind::train,
                       .microbatches = rounds.count,
                       .last_round_ranks = rounds.last_ranks,
                       .activations = activations}};
  if (o.evaluation != 0) options.programs.push_back({.kind = StepKind::evaluate, .activations = activations});
  for (const tessera_use& use : span_of(o.order, o.order_count, "order"))
    options.order.push_back({.unit = use.unit,
                             .pass = checked<Pass>(use.pass, 3, "tessera_use.pass"),
                             .edge = checked<UseEdge>(use.edge, 3, "tessera_use.edge")});
  options.optimizer = to_optimizer(o);
  options.clip.max_norm = o.clip;
  options.parameter_norms = o.parameter_norms != 0;
  options.splits_layers = o.splits_layers != 0;
  options.loss_scaling = to_loss_scaling(o);
  options.budget = {
      .device_bytes = o.device_memory_bytes,
      .host_bytes = o.host_memory_bytes,
      .external_bytes = o.external_bytes,
      .names = {.device = "device_memory_bytes", .host = "host_memory_bytes", .external = "external_bytes"}};
  options.overwrites_gradients = o.overwrite_gradients != 0;
  options.device = checked<DeviceType>(o.device, 2, "device");
  options.device_ordinal = o.device_ordinal;
  options.threads_per_rank = o.threads;
  if (o.deadline_ms != 0) options.waits.deadline = checked_deadline(o.deadline_ms);
  options.debug = {.strict_order = o.strict_order != 0, .poison = o.poison != 0, .guards = o.guards != 0};
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
    defaults.pipeline = 1;
    defaults.replicate = 1;
    defaults.tensor = 1;
    defaults.chunks = 1;
    defaults.prefetch = 1;
    defaults.staged = Offload().staged;
    defaults.reduce = TESSERA_REDUCE_EACH;
    defaults.microbatches = 1;
    defaults.blocks = 1;
    defaults.beta1 = 0.9;
    defaults.beta2 = 0.999;
    defaults.epsilon = 1e-8;
    const LossScaleOptions scaling;
    defaults.loss_scale_growth_factor = scaling.growth_factor;
    defaults.loss_scale_growth_interval = scaling.growth_interval;
    defaults.loss_scale_backoff_factor = scaling.backoff_factor;
    defaults.min_loss_scale = scaling.min;
    defaults.max_loss_scale = scaling.max;
    defaults.threads = 1;
  });
}
