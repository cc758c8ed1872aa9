#include "tessera/learning_rate.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

namespace tessera {
namespace {

constexpr ScheduleKind kKinds[] = {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine,
                                   ScheduleKind::warmup_stable_decay};
constexpr BatchScaling kRules[] = {BatchScaling::none, BatchScaling::linear, BatchScaling::square_root};

// The share of the way from peak to final value in a step before which `done` < `length` steps of decay were
// done; none where the decay has not begun.
double progress(std::int64_t done, std::int64_t length) {
  return done <= 0 ? 0.0 : static_cast<double>(done) / static_cast<double>(length);
}

}  // namespace

std::string_view name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::constant:
      return "constant";
    case ScheduleKind::linear:
      return "linear";
    case ScheduleKind::cosine:
      return "cosine";
    case ScheduleKind::warmup_stable_decay:
      return "warmup_stable_decay";
  }
  return "?";
}

ScheduleKind parse_schedule_kind(std::string_view name) {
  for (ScheduleKind kind : kKinds)
    if (name == name_of(kind)) return kind;
  throw UsageError(
      fmt::format("schedule '{}' is not known; use constant, linear, cosine or warmup_stable_decay", name));
}

void Schedule::check() const {
  if (!(peak > 0.0) || !std::isfinite(peak))
    throw UsageError(fmt::format("schedule: peak = {} is not a positive learning rate", peak));
  if (warmup_steps < 0) throw UsageError(fmt::format("schedule: warmup_steps = {} is below 0", warmup_steps));
  if (!(final_factor >= 0.0 && final_factor <= 1.0))
    throw UsageError(fmt::format("schedule: final_factor = {} is not within 0 to 1", final_factor));
  if (kind != ScheduleKind::warmup_stable_decay && decay_steps != 0)
    throw UsageError(
        fmt::format("schedule: decay_steps = {} has a meaning only for warmup_stable_decay, not for {}",
                    decay_steps, name_of(kind)));
  if (kind == ScheduleKind::constant) return;
  if (total_steps < 1 || total_steps < warmup_steps)
    throw UsageError(
        fmt::format("schedule: total_steps = {} must be at least 1 and at least warmup_steps = {}",
                    total_steps, warmup_steps));
  if (kind == ScheduleKind::warmup_stable_decay &&
      (decay_steps < 1 || decay_steps > total_steps - warmup_steps))
    throw UsageError(fmt::format(
        "schedule: decay_steps = {}, how many of the last steps decay, must be at least 1 and at most "
        "total_steps − warmup_steps = {}",
        decay_steps, total_steps - warmup_steps));
}

double Schedule::learning_rate(std::int64_t step) const {
  if (step < 0) throw UsageError(fmt::format("schedule: step {} is below 0", step));
  if (step < warmup_steps) return peak * (static_cast<double>(step + 1) / static_cast<double>(warmup_steps));
  if (kind != ScheduleKind::constant && step >= total_steps) return peak * final_factor;
  const double fall = peak * (1.0 - final_factor);
  switch (kind) {
    case ScheduleKind::constant:
      return peak;
    case ScheduleKind::linear:
      return peak - fall * progress(step - warmup_steps, total_steps - warmup_steps);
    case ScheduleKind::cosine: {
      const double share = progress(step - warmup_steps, total_steps - warmup_steps);
      return peak - fall * (0.5 - 0.5 * std::cos(std::numbers::pi * share));
    }
    case ScheduleKind::warmup_stable_decay:
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
