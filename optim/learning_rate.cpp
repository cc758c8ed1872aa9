#include "tessera/learning_rate.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

namespace tessera {
namespace {

constexpr LearningRateDecay kDecays[] = {LearningRateDecay::constant, LearningRateDecay::linear,
                                         LearningRateDecay::cosine, LearningRateDecay::warmup_stable_decay};
constexpr BatchScaling kRules[] = {BatchScaling::none, BatchScaling::linear, BatchScaling::square_root};

// The share of the way from peak to final value in a step before which `done` < `length` steps of decay were
// done; none where the decay has not begun.
double progress(std::int64_t done, std::int64_t length) {
  return done <= 0 ? 0.0 : static_cast<double>(done) / static_cast<double>(length);
}

}  // namespace

std::string_view name_of(LearningRateDecay decay) {
  switch (decay) {
    case LearningRateDecay::constant:
      return "constant";
    case LearningRateDecay::linear:
      return "linear";
    case LearningRateDecay::cosine:
      return "cosine";
    case LearningRateDecay::warmup_stable_decay:
      return "warmup_stable_decay";
  }
  return "?";
}

LearningRateDecay parse_learning_rate_decay(std::string_view name) {
  for (LearningRateDecay decay : kDecays)
    if (name == name_of(decay)) return decay;
  throw UsageError(
      fmt::format("schedule '{}' is not known; use constant, linear, cosine or warmup_stable_decay", name));
}

void LearningRateSchedule::check() const {
  if (!(peak > 0.0) || !std::isfinite(peak))
    throw UsageError(fmt::format("schedule: peak = {} is not a positive learning rate", peak));
  if (warmup_steps < 0) throw UsageError(fmt::format("schedule: warmup_steps = {} is below 0", warmup_steps));
  if (!(final_factor >= 0.0 && final_factor <= 1.0))
    throw UsageError(fmt::format("schedule: final_factor = {} is not within 0 to 1", final_factor));
  if (decay != LearningRateDecay::warmup_stable_decay && decay_steps != 0)
    throw UsageError(
        fmt::format("schedule: decay_steps = {} has a meaning only for warmup_stable_decay, not for {}",
                    decay_steps, name_of(decay)));
  if (decay == LearningRateDecay::constant) return;
  if (total_steps < 1 || total_steps < warmup_steps)
    throw UsageError(
        fmt::format("schedule: total_steps = {} must be at least 1 and at least warmup_steps = {}",
                    total_steps, warmup_steps));
  if (decay == LearningRateDecay::warmup_stable_decay &&
      (decay_steps < 1 || decay_steps > total_steps - warmup_steps))
    throw UsageError(fmt::format(
        "schedule: decay_steps = {}, how many of the last steps decay, must be at least 1 and at most "
        "total_steps − warmup_steps = {}",
        decay_steps, total_steps - warmup_steps));
}

double LearningRateSchedule::learning_rate(std::int64_t step) const {
  if (step < 0) throw UsageError(fmt::format("schedule: step {} is below 0", step));
  if (step < warmup_steps) return peak * (static_cast<double>(step + 1) / static_cast<double>(warmup_steps));
  if (decay != LearningRateDecay::constant && step >= total_steps) return peak * final_factor;
  const double fall = peak * (1.0 - final_factor);
  switch (decay) {
    case LearningRateDecay::constant:
      return peak;
    case LearningRateDecay::linear:
      return peak - fall * progress(step - warmup_steps, total_steps - warmup_steps);
    case LearningRateDecay::cosine: {
      const double share = progress(step - warmup_steps, total_steps - warmup_steps);
      return peak - fall * (0.5 - 0.5 * std::cos(std::numbers::pi * share));
    }
    case LearningRateDecay::warmup_stable_decay:
      return peak - fall * progress(step - (total_steps - decay_steps), decay_steps);
  }
  return peak;
}

std::string_view name_of(BatchScaling rule) {
  switch (rule) {
    case BatchScaling::none:
      return "none";
    case BatchScaling::linear:
      return "linear";
    case BatchScaling::square_root:
      return "square_root";
  }
  return "?";
}

BatchScaling parse_batch_scaling(std::string_view name) {
  for (BatchScaling rule : kRules)
    if (name == name_of(rule)) return rule;
  throw UsageError(fmt::format("batch scaling '{}' is not known; use none, linear or square_root", name));
}

double scale_learning_rate(double rate, double batch, double base_batch, BatchScaling rule) {
  const auto require = [](std::string_view what, double value) {
    if (!(value > 0.0) || !std::isfinite(value))
      throw UsageError(fmt::format("learning rate by batch: {} = {} is not a positive number", what, value));
  };
  require("rate", rate);
  require("batch", batch);
  require("base_batch", base_batch);
  if (rule == BatchScaling::none) return rate;
  const double growth = batch / base_batch;
  return rate * (rule == BatchScaling::linear ? growth : std::sqrt(growth));
}

}  // namespace tessera
