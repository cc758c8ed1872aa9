#include "tessera/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tessera/error.h"

namespace tessera {
namespace {

// Positive, finite, and one bit of mantissa.
bool power_of_two(double value) {
  int exponent = 0;
  return std::isfinite(value) && std::frexp(value, &exponent) == 0.5;
}

}  // namespace

void LossScaleOptions::check() const {
  const auto require = [](bool right, const char* field, double value, const std::string& what) {
    if (!right) throw UsageError(fmt::format("loss scale: {} = {} must be {}", field, value, what));
  };
  require(power_of_two(min), "min", min, "a power of two");
  require(power_of_two(max) && max >= min && max <= 0x1p127, "max", max,
          fmt::format("a power of two from min, {}, to 2^127", min));
  require(power_of_two(initial) && initial >= min && initial <= max, "initial", initial,
          fmt::format("a power of two from min, {}, to max, {}", min, max));
  require(power_of_two(growth_factor) && growth_factor > 1.0, "growth_factor", growth_factor,
          "a power of two above 1");
  require(power_of_two(backoff_factor) && backoff_factor < 1.0, "backoff_factor", backoff_factor,
          "a power of two below 1");
  require(growth_interval >= 1, "growth_interval", static_cast<double>(growth_interval), "at least 1");
}

LossScaler::LossScaler(const LossScaleOptions& options) : options_(options) {
  options_.check();
  state_.scale = options_.initial;
}

void LossScaler::record(StepOutcome outcome) {
  exhausted_ = outcome == StepOutcome::skipped && state_.scale <= options_.min;
  if (outcome == StepOutcome::skipped) {
    state_.scale = std::max(state_.scale * options_.backoff_factor, options_.min);
    state_.applied_in_a_row = 0;
    ++state_.skipped_in_a_row;
    ++state_.skipped;
    return;
  }
  state_.skipped_in_a_row = 0;
  if (++state_.applied_in_a_row < options_.growth_interval) return;
  state_.scale = std::min(state_.scale * options_.growth_factor, options_.max);
  state_.applied_in_a_row = 0;
}

void LossScaler::restore(const LossScaleState& state) {
  if (!(state.scale >= options_.min && state.scale <= options_.max) || !power_of_two(state.scale))
    throw UsageError(fmt::format("loss scale: a saved scale of {} is not a power of two from {} to {}",
                                 state.scale, options_.min, options_.max));
  if (state.applied_in_a_row < 0 || state.skipped_in_a_row < 0 || state.skipped < 0)
    throw UsageError(fmt::format("loss scale: saved counts {}, {}, {} must not be negative",
                                 state.applied_in_a_row, state.skipped_in_a_row, state.skipped));
  state_ = state;
  exhausted_ = false;
}

}  // namespace tessera
