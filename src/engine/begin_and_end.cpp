// What begins and ends a step, whether its uses are called or it is replayed.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/gate_math.h"
#include "src/engine/engine_impl.h"

namespace tessera {
namespace {

// What a rank brings to a step; infinity and NaN compare as no less.
void check_amount(const char* call, const char* name, double value, double most) {
  if (!(value >= 0 && value <= most))
    throw UsageError(fmt::format("{}: {} is {}; it must be 0 to {:.3g}", call, name, value, most));
}
// Updates compute in fp32, with each group's factor.
void check_learning_rate(const char* call, const char* name, double value, const Optimizer& optimizer) {
  double factor = 1.0;
  for (const ParameterGroup& group : optimizer.groups) factor = std::max(factor, group.learning_rate_factor);
  check_amount(call, name, value, std::numeric_limits<float>::max() / factor);
}

}  // namespace

void Engine::Impl::check_program(const char* call, int index) const {
  const auto count = static_cast<int>(options.programs.size());  // those behind are the engine's own
  if (index < 0 || index >= count)
    throw UsageError(fmt::format("{}: program {} does not exist; there are {}", call, index, count));
}

std::optional<Executor::UpdateTerms> Engine::Impl::early_terms(int index, const StepTerms& given) {
  if (options.strategy.update != UpdateWhen::reduced || programs[index].kind != StepKind::train) return {};
  const double gradient_scale = kernels::unscale_of(given.weight, scale());
  if (!(given.weight > 0 && kernels::scales_fp32(gradient_scale)))
    throw UsageError(fmt::format(
        "begin: terms.weight is {}; with strategy.update reduced a training step begins with the learning "
        "rate and the weight that all ranks' inputs will add up to, from about 3e-39 to 1e45, whose "
        "inverse fp32 has",
        given.weight));
  check_learning_rate("begin", "terms.learning_rate", given.learning_rate, options.optimizer);
  return Executor::UpdateTerms{
      .learning_rate = given.learning_rate, .step = steps_applied + 1, .gradient_scale = gradient_scale};
}

void Engine::Impl::begin_step(int index, const StepTerms& given) {
  if (given.continues && !(programs[index].kind == StepKind::evaluate && evaluated_last))
    throw UsageError("begin: terms.continues is true, which an evaluation may have right behind another one");
  // The same program takes them along.
  if (executor->carried_from() >= 0 && executor->carried_from() != index) executor->finish_carried();
  // A reader may wait for the GPU, which nobody may on this thread while a step is captured.
  const bool changes_early = options.strategy.update == UpdateWhen::reduced || given.captured;
  if (changes_early && programs[index].kind == StepKind::train) before_change();
  abandoned = false;
  ++steps_begun;
  offered_program = -1;
  terms = given;
}

Executor::StepValues Engine::Impl::step_values() const {
  return {.updates = steps_applied, .loss_scale = scale()};
}

void Engine::Impl::check_step(const StepInputs& inputs, bool early) {
  check_learning_rate("step", "learning_rate", inputs.learning_rate, options.optimizer);
  check_amount("step", "weight", inputs.weight, std::numeric_limits<double>::max());
  if (early && inputs.learning_rate != terms.learning_rate)
    throw UsageError(fmt::format("step: the learning rate is {}; the step began with {}",
                                 inputs.learning_rate, terms.learning_rate));
}

Executor::ScalarHeader Engine::Impl::header_of(const StepInputs& inputs, int index) const {
  Executor::ScalarHeader header = {};
  const std::span<double> scalars = header;
  scalar(scalars, Scalar::loss) = counts_loss() ? inputs.loss : 0;
  scalar(scalars, Scalar::weight) = counts_loss() ? inputs.weight : 0;
  scalar(scalars, Scalar::step) = static_cast<double>(steps_applied);
  scalar(scalars, Scalar::learning_rate) = inputs.learning_rate;
  scalar(scalars, Scalar::abandoned) = abandoned ? 1.0 : 0.0;
  scalar(scalars, Scalar::hash_low) = static_cast<double>(hash & 0xFFFFFFFFU);
  scalar(scalars, Scalar::hash_high) =
      static_cast<double>(hash >> 32) + static_cast<double>(2 * index + (terms.continues ? 1 : 0)) * 0x1p32;
  scalar(scalars, Scalar::loss_scale) = scale();
  return header;
}

StepResult Engine::Impl::result_of(StepKind kind) {
  StepResult result = executor->decision().result;
  if (kind == StepKind::train && result.reason != SkipReason::abandoned) {
    const bool early = executor->updates_early();
    if (early && result.weight != terms.weight)
      throw UsageError(fmt::format(
          "step: the ranks' weights add up to {}; the step began with {}, by which it was updated",
          result.weight, terms.weight));
    result.applied = early || result.reason == SkipReason::none;
    if (result.applied) ++steps_applied;
    if (options.loss_scaling && result.reason != SkipReason::no_weight)
      scaler.record(result.applied ? StepOutcome::applied : StepOutcome::skipped);
  }
  evaluated_last = kind == StepKind::evaluate && result.reason != SkipReason::abandoned;
  result.step = steps_applied;
  return result;
}

// ---- captured steps ----

StepMode Engine::next_step(int program, const StepTerms& terms) {
  return impl_->guarded("next_step", [&] {
    impl_->check_program("next_step", program);
    if (impl_->running())
      throw UsageError(
          fmt::format("next_step: a step is running; the program expects {}", impl_->expected()));
    impl_->offered_program = program;
    impl_->offered = impl_->executor->next_mode(program, terms.continues);
    return impl_->offered;
  });
}

std::string Engine::not_captured(int program) const {
  impl_->check_program("not_captured", program);
  return impl_->executor->not_captured(program);
}

std::size_t Engine::captured_operations(int program) const {
  impl_->check_program("captured_operations", program);
  return impl_->executor->captured_operations(program);
}

StepPlace Engine::step_place() const {
  if (!impl_->running()) throw UsageError("step_place: no step is running; call begin first");
  return impl_->executor->step_place();
}

StepResult Engine::replay(int program, const StepTerms& terms, const StepInputs& inputs,
                          const Upload& upload) {
  return impl_->guarded("replay", [&] {
    impl_->check_program("replay", program);
    if (impl_->running() || impl_->offered_program != program || impl_->offered != StepMode::replayed)
      throw UsageError("replay: next_step() did not say StepMode::replayed; ask it before each step");
    const std::optional<Executor::UpdateTerms> early = impl_->early_terms(program, terms);
    impl_->begin_step(program, terms);
    impl_->check_step(inputs, early.has_value());
    const StepKind kind = impl_->programs[program].kind;
    if (kind == StepKind::train) impl_->before_change();
    impl_->executor->replay(
        program,
        {.terms = early, .values = impl_->step_values(), .header = impl_->header_of(inputs, program)},
        upload);
    return impl_->result_of(kind);
  });
}

}  // namespace tessera
