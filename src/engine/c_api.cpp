// tessera/c_api.h over tessera::Engine: verbs and errors.
#include "tessera/c_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "src/engine/c_api_handles.h"
#include "src/engine/c_api_options.h"
#include "src/engine/c_api_support.h"
#include "src/engine/c_words.h"
#include "tessera/engine.h"
#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace tessera::c_api {

LastError& last_error() noexcept {
  thread_local LastError last;
  return last;
}

tessera_status remember(tessera_status status, const char* message) noexcept {
  last_error().status = status;
  try {
    last_error().message = in_words_of_c(message);
  } catch (...) {  // no memory for the message; the status must do
    last_error().message.clear();
  }
  return status;
}

void check_callback(tessera_status status, const std::string& who) {
  if (status == TESSERA_OK) return;
  const bool handed_on = last_error().status == status && !last_error().message.empty();
  throw CallbackError(status, handed_on ? last_error().message : fmt::format("{} returned {}", who, status));
}

namespace {

tessera_lease& free_lease(tessera_engine& engine) {
  for (const auto& lease : engine.leases)
    if (!lease->lease) return *lease;
  return *engine.leases.emplace_back(std::make_unique<tessera_lease>(tessera_lease{&engine.engine}));
}

const UnitLease& lease_of(const tessera_lease* lease) {
  const std::optional<UnitLease>& held = given(lease, "lease").lease;
  if (!held) throw UsageError("the lease has ended");
  return *held;
}

tessera_view to_view(const TensorView& view, float beta) {
  return {
      .data = view.data, .numel = view.numel, .dtype = static_cast<std::int32_t>(view.dtype), .beta = beta};
}

void write_result(tessera_engine& engine, StepResult from, tessera_step_result* result) {
  engine.first_nonfinite = std::move(from.first_nonfinite);
  engine.parameter_norms = std::move(from.parameter_norms);
  if (result == nullptr) return;
  *result = {.step = from.step,
             .applied = from.applied,
             .reason = static_cast<std::int32_t>(from.reason),
             .first_nonfinite = engine.first_nonfinite.c_str(),
             .loss = from.loss,
             .weight = from.weight,
             .gradient_norm = from.gradient_norm,
             .loss_scale = from.loss_scale,
             .learning_rate = from.learning_rate,
             .parameter_norms = engine.parameter_norms.empty() ? nullptr : engine.parameter_norms.data(),
             .parameter_norm_count = static_cast<std::int32_t>(engine.parameter_norms.size())};
}

// Why a training step was not applied.
std::string skipped_text(const StepResult& result) {
  switch (result.reason) {
    case SkipReason::abandoned:
      return "a rank abandoned it";
    case SkipReason::no_weight:
      return "the ranks' weights add up to 0";
    default:
      return result.first_nonfinite.empty()
                 ? "its gradient is not finite"
                 : fmt::format("the gradient of '{}' is not finite", result.first_nonfinite);
  }
}

// The numbers of the header are those of the enumerators.
static_assert(TESSERA_EVALUATE == static_cast<int>(StepKind::evaluate) &&
              TESSERA_NO_WEIGHT == static_cast<int>(SkipReason::no_weight) &&
              TESSERA_MOMENT2 == static_cast<int>(StateKind::moment2) && TESSERA_CATEGORIES == kCategories &&
              TESSERA_WORKSPACE == static_cast<int>(Category::workspace) &&
              TESSERA_CACHE == static_cast<int>(Category::cache) &&
              TESSERA_OPTIMIZER_STATE == static_cast<int>(Category::optimizer_state) &&
              TESSERA_SHARD == static_cast<int>(Axis::shard) &&
              TESSERA_TENSOR == static_cast<int>(Axis::tensor));

}  // namespace

void end_step(tessera_engine& engine, StepResult of, tessera_step_result* result) {
  if (result == nullptr && engine.trains && !of.applied)
    throw CallbackError(
        TESSERA_SKIPPED,
        fmt::format("the step was skipped and changed nothing: {}; with a tessera_step_result "
                    "this is its `applied` and `reason`",
                    skipped_text(of)));
  write_result(engine, std::move(of), result);
}

}  // namespace tessera::c_api

using namespace tessera;
using namespace tessera::c_api;

const char* tessera_last_error() { return last_error().message.c_str(); }

tessera_status tessera_engine_create(tessera_world* world, const tessera_unit* units, int32_t unit_count,
                                     const tessera_options* options, tessera_engine** engine) {
  return guarded([&] {
    tessera_engine*& out = given(engine, "engine");
    const Communicator& communicator = given(world, "world").communicator;
    std::vector<UnitSpec> specs = to_specs(units, unit_count);
    EngineOptions made =
        to_options(given(options, "options"), span_of(units, unit_count, "units"), communicator.world());
    out = new tessera_engine(std::make_unique<Engine>(communicator, std::move(specs), std::move(made)));
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

tessera_status tessera_microbatches(const tessera_engine* engine, int32_t* rounds, int32_t* own) {
  return guarded([&] {
    const Engine& of = given(engine, "engine").engine;
    given(rounds, "rounds") = of.program(0).microbatches;
    given(own, "own") = of.own_microbatches();
  });
}

tessera_status tessera_begin(tessera_engine* engine, int32_t kind, int32_t microbatches) {
  return guarded([&] {
    tessera_engine& of = given(engine, "engine");
    of.engine.begin(checked<StepKind>(kind, 2, "kind"), microbatches);
    of.trains = kind == TESSERA_TRAIN;
  });
}

tessera_status tessera_begin_on_terms(tessera_engine* engine, int32_t microbatches, double learning_rate,
                                      double weight) {
  return guarded([&] {
    tessera_engine& of = given(engine, "engine");
    of.engine.begin(StepKind::train, microbatches, {.learning_rate = learning_rate, .weight = weight});
    of.trains = true;
  });
}

tessera_status tessera_continue_evaluation(tessera_engine* engine, int32_t microbatches) {
  return guarded([&] {
    tessera_engine& of = given(engine, "engine");
    of.engine.begin(StepKind::evaluate, microbatches, {.continues = true});
    of.trains = false;
  });
}

tessera_status tessera_use_unit(tessera_engine* engine, int32_t unit, int32_t pass, tessera_lease** lease) {
  return guarded([&] {
    tessera_lease*& out = given(lease, "lease");
    given(engine, "engine").leave();
    tessera_lease& slot = free_lease(*engine);
    slot.lease.emplace(engine->engine.use(unit, checked<Pass>(pass, kPasses, "pass")));
    out = &slot;
  });
}

tessera_status tessera_skip_unit(tessera_engine* engine, int32_t unit, int32_t pass) {
  return guarded([&] {
    given(engine, "engine").leave();
    engine->engine.skip(unit, checked<Pass>(pass, kPasses, "pass"));
  });
}

tessera_status tessera_place(const tessera_engine* engine, int32_t axis, int32_t* place) {
  return guarded([&] {
    const Engine& of = given(engine, "engine").engine;
    given(place, "place") = of.options().mesh.place(of.rank(), checked<Axis>(axis, kAxes, "axis"));
  });
}

tessera_status tessera_scheduled_uses(tessera_engine* engine, const tessera_scheduled_use** uses,
                                      int32_t* count) {
  return guarded([&] {
    given(uses, "uses");
    given(count, "count");
    const Program& program = given(engine, "engine").engine.running();
    std::vector<tessera_scheduled_use>& list = engine->uses;
    list.clear();
    for (const Instruction& use : program.instructions)
      if (use.op == Opcode::use)
        list.push_back({.unit = use.unit,
                        .pass = static_cast<std::int32_t>(use.pass),
                        .edge = static_cast<std::int32_t>(use.edge),
                        .microbatch = use.microbatch});
    *uses = list.data();
    *count = static_cast<std::int32_t>(list.size());
  });
}

tessera_status tessera_lease_handover(const tessera_lease* lease, tessera_handover* handover) {
  return guarded([&] {
    const UnitLease& held = lease_of(lease);
    tessera_handover& out = given(handover, "handover") = {};
    out.output = held.address(Role::output);
    out.output_gradient = held.address(Role::output_gradient);
    out.saved = held.value(UnitGraph::kSaved);
    out.recomputable = held.value(UnitGraph::kRecomputable);
    out.workspace = held.address(Role::workspace);
    out.input = held.address(Role::input);
    out.input_gradient = held.address(Role::input_gradient);
  });
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

tessera_status tessera_lease_fp32(const tessera_lease* lease, int32_t parameter, float** values) {
  return guarded([&] { given(values, "values") = lease_of(lease).parameter(parameter).as<float>().data(); });
}

tessera_status tessera_lease_gradient_fp32(const tessera_lease* lease, int32_t parameter, float** gradient) {
  return guarded([&] {
    const UnitLease& held = lease_of(lease);
    if (lease->engine->options().overwrites_gradients)
      throw UsageError(
          "overwrite_gradients is 1: a pointer cannot say where to overwrite; use tessera_lease_gradient, "
          "whose "
          "view has a beta, or leave overwrite_gradients at 0");
    given(gradient, "gradient") = held.gradient(parameter).as<float>().data();
  });
}

tessera_status tessera_lease_writes_gradients(const tessera_lease* lease, int32_t* writes) {
  return guarded([&] { given(writes, "writes") = lease_of(lease).writes_gradients() ? 1 : 0; });
}

tessera_status tessera_lease_all_gather(const tessera_lease* lease, const void* part, void* whole,
                                        int64_t part_bytes) {
  return guarded([&] { lease_of(lease).tensor().all_gather(part, whole, part_bytes); });
}

tessera_status tessera_lease_reduce_scatter(const tessera_lease* lease, const void* whole, int32_t dtype,
                                            float* part, int64_t part_numel) {
  return guarded([&] {
    lease_of(lease).tensor().reduce_scatter(whole, checked<DType>(dtype, 3, "dtype"), part, part_numel);
  });
}

tessera_status tessera_lease_all_reduce(const tessera_lease* lease, float* values, int64_t numel) {
  return guarded([&] { lease_of(lease).tensor().all_reduce(values, numel); });
}

tessera_status tessera_lease_end(tessera_lease* lease) {
  return guarded([&] {
    lease_of(lease);
    UnitLease ending = std::move(*lease->lease);
    lease->lease.reset();
    ending.end();
  });
}

tessera_status tessera_stream(const tessera_engine* engine, void** stream) {
  return guarded([&] { given(stream, "stream") = given(engine, "engine").engine.stream(); });
}

tessera_status tessera_transfer(tessera_engine* engine, void* to, const void* from, int64_t bytes) {
  return guarded([&] {
    span_of(static_cast<const std::byte*>(from), bytes, "from");
    span_of(static_cast<std::byte*>(to), bytes, "to");
    given(engine, "engine").engine.transfer(to, from, bytes);
  });
}

tessera_status tessera_upload(tessera_engine* engine, void* to, const void* from, int64_t bytes) {
  return guarded([&] {
    span_of(static_cast<const std::byte*>(from), bytes, "from");
    span_of(static_cast<std::byte*>(to), bytes, "to");
    given(engine, "engine").engine.upload(to, from, bytes);
  });
}

tessera_status tessera_add_loss(tessera_engine* engine, const tessera_loss_total* total) {
  static_assert(sizeof(tessera_loss_total) == sizeof(LossTotal) &&
                offsetof(tessera_loss_total, counted) == offsetof(LossTotal, counted));
  return guarded([&] { given(engine, "engine").engine.add_loss(reinterpret_cast<const LossTotal*>(total)); });
}

tessera_status tessera_step(tessera_engine* engine, const tessera_step_inputs* inputs,
                            tessera_step_result* result) {
  return guarded([&] {
    const tessera_step_inputs& in = given(inputs, "inputs");
    tessera_engine& of = given(engine, "engine");
    of.leave();
    end_step(of, of.engine.step({.learning_rate = in.learning_rate, .weight = in.weight, .loss = in.loss}),
             result);
  });
}

tessera_status tessera_abandon(tessera_engine* engine, tessera_step_result* result) {
  return guarded([&] {
    tessera_engine& of = given(engine, "engine");
    of.leave();
    write_result(of, of.engine.abandon(), result);
  });
}

tessera_status tessera_end_evaluation(tessera_engine* engine) {
  return guarded([&] {
    given(engine, "engine").leave();
    engine->engine.end_evaluation();
  });
}

tessera_status tessera_finish_updates(tessera_engine* engine) {
  return guarded([&] { given(engine, "engine").engine.finish_updates(); });
}

tessera_status tessera_loss_scale(const tessera_engine* engine, float* scale) {
  return guarded([&] { given(scale, "scale") = given(engine, "engine").engine.loss_scale(); });
}

tessera_status tessera_steps_applied(const tessera_engine* engine, int64_t* steps) {
  return guarded([&] { given(steps, "steps") = given(engine, "engine").engine.steps_applied(); });
}

tessera_status tessera_read(tessera_engine* engine, int32_t parameter, int32_t state, int64_t begin,
                            float* values, int64_t numel) {
  return guarded([&] {
    given(engine, "engine")
        .engine.read(parameter, checked<StateKind>(state, 4, "state"), begin,
                     span_of(values, numel, "values"));
  });
}

tessera_status tessera_read_gradient(tessera_engine* engine, int32_t parameter, int64_t begin, float* values,
                                     int64_t numel) {
  return guarded([&] {
    given(engine, "engine").engine.read_gradient(parameter, begin, span_of(values, numel, "values"));
  });
}

tessera_status tessera_write(tessera_engine* engine, int32_t parameter, int32_t state, int64_t begin,
                             const float* values, int64_t numel) {
  return guarded([&] {
    given(engine, "engine")
        .engine.write(parameter, checked<StateKind>(state, 4, "state"), begin,
                      span_of(values, numel, "values"));
  });
}

tessera_status tessera_plan_bytes(const tessera_engine* engine, int32_t space, int64_t* arena,
                                  int64_t at_peak[TESSERA_CATEGORIES]) {
  return guarded([&] {
    const SpacePlan& plan =
        given(engine, "engine").engine.plan().space(checked<Space>(space, kSpaces, "space"));
    given(arena, "arena") = plan.arena_bytes;
    if (at_peak != nullptr) std::copy(plan.at_peak.begin(), plan.at_peak.end(), at_peak);
  });
}

tessera_status tessera_set_tracing(tessera_engine* engine, int32_t on) {
  return guarded([&] { given(engine, "engine").engine.set_tracing(on != 0); });
}

tessera_status tessera_step_timing(const tessera_engine* engine, tessera_timing* timing) {
  return guarded([&] {
    const StepTiming of = given(engine, "engine").engine.timing();
    given(timing, "timing") = {.total_us = of.total_us,
                               .issue_us = of.issue_us,
                               .communication_us = of.communication_us,
                               .exposed_us = of.exposed_us};
  });
}

tessera_status tessera_notes(tessera_engine* engine, const char** notes) {
  return guarded([&] {
    tessera_engine& of = given(engine, "engine");
    const ArenaRegistration& exchange = of.engine.arena_registration();
    std::string text;
    for (const auto& [what, note] : {std::pair{"exchange", exchange.reason},
                                     {"exchange", exchange.note},
                                     {"disk", of.engine.disk_description()}})
      if (!note.empty()) text += std::string(what) + ": " + note + "\n";
    for (const std::string& notice : of.engine.notices()) text += "device: " + notice + "\n";
    of.notes = std::move(text);
    given(notes, "notes") = of.notes.c_str();
  });
}
