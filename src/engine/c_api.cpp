// tessera/c_api.h over tessera::Engine: turns handles into objects, plain numbers into checked values, and
// exceptions into a status and a message of the thread.
#include "tessera/c_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/engine.h"

struct tessera_world {
  tessera::Communicator communicator;
};

struct tessera_lease {
  std::optional<tessera::UnitLease> lease;  // none: ended, free for the next use
};

struct tessera_engine {
  tessera::Engine engine;
  std::string first_nonfinite = {};
  std::vector<std::unique_ptr<tessera_lease>> leases = {};  // as many as were open at once; go before engine
};

namespace tessera {
namespace {

struct LastError {
  tessera_status status = TESSERA_OK;
  std::string message;
};
thread_local LastError last_error;

// A callback in C returned a status.
struct CallbackError : Error {
  CallbackError(tessera_status code, const std::string& message) : Error(message), status(code) {}
  tessera_status status;
};

tessera_status remember(tessera_status status, const char* message) noexcept {
  last_error.status = status;
  try {
    last_error.message = message;
  } catch (...) {  // no memory for the message; the status must do
    last_error.message.clear();
  }
  return status;
}

template <typename Body>
tessera_status guarded(const Body& body) noexcept {
  try {
    body();
    return TESSERA_OK;
  } catch (const CallbackError& error) {
    return remember(error.status, error.what());
  } catch (const UsageError& error) {
    return remember(TESSERA_USAGE, error.what());
  } catch (const EnvironmentError& error) {
    return remember(TESSERA_ENVIRONMENT, error.what());
  } catch (const UnsupportedError& error) {
    return remember(TESSERA_UNSUPPORTED, error.what());
  } catch (const CommunicationError& error) {
    return remember(TESSERA_COMMUNICATION, error.what());
  } catch (const std::bad_alloc&) {
    return remember(TESSERA_ENVIRONMENT, "out of memory");
  } catch (const std::exception& error) {
    return remember(TESSERA_OTHER, error.what());
  } catch (...) {
    return remember(TESSERA_OTHER, "an exception that is not a std::exception");
  }
}

template <typename T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) throw UsageError(fmt::format("{} is null", name));
  return *pointer;
}

// A plain number as an enumerator 0 .. count-1.
template <typename Enum>
Enum checked(std::int32_t value, int count, const char* name) {
  if (value < 0 || value >= count)
    throw UsageError(fmt::format("{} {} is not known; use 0 to {}", name, value, count - 1));
  return static_cast<Enum>(value);
}

template <typename T>
std::span<T> span_of(T* first, std::int64_t count, const char* name) {
  if (count < 0) throw UsageError(fmt::format("{} has a count of {}; use 0 or more", name, count));
  if (count > 0) given(first, name);
  return {first, static_cast<std::size_t>(count)};
}

std::chrono::milliseconds checked_deadline(std::int64_t deadline_ms) {
  if (deadline_ms < 1) throw UsageError(fmt::format("deadline_ms is {}; use 1 or more", deadline_ms));
  return std::chrono::milliseconds(deadline_ms);
}

// What a callback that failed leaves behind: the message of the call whose status it handed on, else its own.
void check_callback(tessera_status status, const std::string& who) {
  if (status == TESSERA_OK) return;
  const bool handed_on = last_error.status == status && !last_error.message.empty();
  throw CallbackError(status, handed_on ? last_error.message : fmt::format("{} returned {}", who, status));
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
  return spec;
}

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

void write_result(tessera_engine& engine, StepResult from, tessera_step_result* result) {
  engine.first_nonfinite = std::move(from.first_nonfinite);
  if (result == nullptr) return;
  *result = {.step = from.step,
             .applied = from.applied,
             .reason = static_cast<std::int32_t>(from.reason),
             .first_nonfinite = engine.first_nonfinite.c_str(),
             .loss = from.loss,
             .weight = from.weight,
             .gradient_norm = from.gradient_norm,
             .loss_scale = from.loss_scale,
             .learning_rate = from.learning_rate};
}

tessera_lease& free_lease(tessera_engine& engine) {
  for (const auto& lease : engine.leases)
    if (!lease->lease) return *lease;
  return *engine.leases.emplace_back(std::make_unique<tessera_lease>());
}

const UnitLease& lease_of(const tessera_lease* lease) {
  const std::optional<UnitLease>& held = given(lease, "lease").lease;
  if (!held) throw UsageError("the lease has ended");
  return *held;
}

tessera_view to_view(const View& view, float beta) {
  return {
      .data = view.data, .numel = view.numel, .dtype = static_cast<std::int32_t>(view.dtype), .beta = beta};
}

// The numbers of the header are those of the enumerators.
static_assert(TESSERA_FP16 == static_cast<int>(DType::fp16) &&
              TESSERA_BACKWARD == static_cast<int>(Pass::backward) &&
              TESSERA_CLOSE == static_cast<int>(UseEdge::close) &&
              TESSERA_EVALUATE == static_cast<int>(StepKind::evaluate) &&
              TESSERA_REDUCE_LAST == static_cast<int>(ReduceWhen::last) &&
              TESSERA_NO_WEIGHT == static_cast<int>(SkipReason::no_weight) &&
              TESSERA_MOMENT2 == static_cast<int>(State::moment2) && TESSERA_CATEGORIES == kCategories &&
              TESSERA_WORKSPACE == static_cast<int>(Category::workspace) &&
              TESSERA_OPTIMIZER_STATE == static_cast<int>(Category::optimizer_state));

}  // namespace
}  // namespace tessera

using namespace tessera;

const char* tessera_last_error() { return last_error.message.c_str(); }

tessera_status tessera_run_ranks(int32_t ranks, int64_t deadline_ms, tessera_rank_main rank_main,
                                 void* user) {
  return guarded([&] {
    given(rank_main, "rank_main");
    run_local(ranks, {.deadline = checked_deadline(deadline_ms)},
              [rank_main, user](Communicator communicator) {
                last_error = {};
                tessera_world world{std::move(communicator)};
                check_callback(rank_main(&world, user), fmt::format("rank {}", world.communicator.rank()));
              });
  });
}

tessera_status tessera_world_create_mpi(int64_t deadline_ms, tessera_world** world) {
  return guarded([&] {
    tessera_world*& out = given(world, "world");
    out = new tessera_world{make_mpi_world({.deadline = checked_deadline(deadline_ms)})};
  });
}

tessera_status tessera_world_destroy(tessera_world* world) {
  return guarded([&] { delete world; });
}

tessera_status tessera_world_fail(tessera_world* world, const char* message) {
  return guarded([&] { given(world, "world").communicator.fail(&given(message, "message")); });
}

tessera_status tessera_world_rank(const tessera_world* world, int32_t* rank) {
  return guarded([&] { given(rank, "rank") = given(world, "world").communicator.rank(); });
}

tessera_status tessera_world_ranks(const tessera_world* world, int32_t* ranks) {
  return guarded([&] { given(ranks, "ranks") = given(world, "world").communicator.world(); });
}

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

tessera_status tessera_engine_create(tessera_world* world, const tessera_unit* units, int32_t unit_count,
                                     const tessera_options* options, tessera_engine** engine) {
  return guarded([&] {
    tessera_engine*& out = given(engine, "engine");
    const Communicator& communicator = given(world, "world").communicator;
    out = new tessera_engine{.engine = Engine(communicator, to_specs(units, unit_count),
                                              to_options(given(options, "options"), communicator.world()))};
  });
}

tessera_status tessera_engine_destroy(tessera_engine* engine) {
  return guarded([&] { delete engine; });
}

tessera_status tessera_find_parameter(const tessera_engine* engine, const char* name, int32_t* parameter) {
  return guarded([&] {
    given(parameter, "parameter") = given(engine, "engine").engine.layout().find(&given(name, "name"));
  });
}

tessera_status tessera_initialize(tessera_engine* engine, tessera_fill fill, void* user) {
  return guarded([&] {
    given(fill, "fill");
    given(engine, "engine")
        .engine.initialize([&](ParameterId id, std::int64_t begin, std::span<float> values) {
          check_callback(fill(id, begin, values.data(), static_cast<std::int64_t>(values.size()), user),
                         "fill");
        });
  });
}

tessera_status tessera_begin(tessera_engine* engine, int32_t kind, int32_t microbatches) {
  return guarded(
      [&] { given(engine, "engine").engine.begin(checked<StepKind>(kind, 2, "kind"), microbatches); });
}

tessera_status tessera_use_unit(tessera_engine* engine, int32_t unit, int32_t pass, tessera_lease** lease) {
  return guarded([&] {
    tessera_lease*& out = given(lease, "lease");
    tessera_lease& slot = free_lease(given(engine, "engine"));
    slot.lease.emplace(engine->engine.use(unit, checked<Pass>(pass, 3, "pass")));
    out = &slot;
  });
}

tessera_status tessera_skip_unit(tessera_engine* engine, int32_t unit, int32_t pass) {
  return guarded([&] { given(engine, "engine").engine.skip(unit, checked<Pass>(pass, 3, "pass")); });
}

tessera_status tessera_lease_parameter(const tessera_lease* lease, int32_t parameter, tessera_view* view) {
  return guarded([&] { given(view, "view") = to_view(lease_of(lease).parameter(parameter), 0.0f); });
}

tessera_status tessera_lease_gradient(const tessera_lease* lease, int32_t parameter, tessera_view* view) {
  return guarded([&] {
    const UnitLease& held = lease_of(lease);
    given(view, "view") = to_view(held.gradient(parameter), held.gradient_beta(parameter));
  });
}

tessera_status tessera_lease_end(tessera_lease* lease) {
  return guarded([&] {
    lease_of(lease);
    UnitLease ending = std::move(*lease->lease);
    lease->lease.reset();
    ending.end();
  });
}

tessera_status tessera_step(tessera_engine* engine, const tessera_step_inputs* inputs,
                            tessera_step_result* result) {
  return guarded([&] {
    const tessera_step_inputs& in = given(inputs, "inputs");
    write_result(
        given(engine, "engine"),
        engine->engine.step({.learning_rate = in.learning_rate, .weight = in.weight, .loss = in.loss}),
        result);
  });
}

tessera_status tessera_abandon(tessera_engine* engine, tessera_step_result* result) {
  return guarded([&] { write_result(given(engine, "engine"), engine->engine.abandon(), result); });
}

tessera_status tessera_loss_scale(const tessera_engine* engine, float* scale) {
  return guarded([&] { given(scale, "scale") = given(engine, "engine").engine.loss_scale(); });
}

tessera_status tessera_read(tessera_engine* engine, int32_t parameter, int32_t state, int64_t begin,
                            float* values, int64_t numel) {
  return guarded([&] {
    given(engine, "engine")
        .engine.read(parameter, checked<State>(state, 4, "state"), begin, span_of(values, numel, "values"));
  });
}

tessera_status tessera_write(tessera_engine* engine, int32_t parameter, int32_t state, int64_t begin,
                             const float* values, int64_t numel) {
  return guarded([&] {
    given(engine, "engine")
        .engine.write(parameter, checked<State>(state, 4, "state"), begin, span_of(values, numel, "values"));
  });
}

tessera_status tessera_plan_bytes(const tessera_engine* engine, int64_t* arena,
                                  int64_t at_peak[TESSERA_CATEGORIES]) {
  return guarded([&] {
    const SpacePlan& plan = given(engine, "engine").engine.plan().space(Space::device);
    given(arena, "arena") = plan.arena_bytes;
    if (at_peak != nullptr) std::copy(plan.at_peak.begin(), plan.at_peak.end(), at_peak);
  });
}
