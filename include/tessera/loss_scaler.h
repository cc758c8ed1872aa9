// Dynamic loss scaling for fp16 training: the factor on the loss, and how it changes. Plain values. The
// engine decides on all ranks alike whether a step is applied or skipped, and tells the scaler.
#pragma once

#include <cstdint>

namespace tessera {

// All factors are powers of two, so that scaling and unscaling never round (Micikevicius et al., Mixed
// precision training, ICLR 2018, §3.2).
struct LossScaleOptions {
  double initial = 65536.0;
  double growth_factor = 2.0;
  std::int64_t growth_interval = 2000;  // steps applied in a row before the scale grows
  double backoff_factor = 0.5;
  double min = 1.0;
  double max = 16777216.0;  // 2^24

  // Throws UsageError naming the field and its value.
  void check() const;
};

// The state that a resumed run needs to continue bit for bit.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t applied_in_a_row = 0;  // since the scale last changed or a step was skipped
  std::int64_t skipped_in_a_row = 0;
  std::int64_t skipped = 0;  // in all
  bool operator==(const LossScaleState&) const = default;
};

enum class StepOutcome : std::uint8_t { applied, skipped };

class LossScaler {
 public:
  // Throws UsageError if options.check() does.
  explicit LossScaler(const LossScaleOptions& options = {});

  // The factor for the loss of the coming step; the gradient is divided by it.
  double scale() const { return state_.scale; }

  // Called once per step with its outcome. Nothing else changes the state, so an abandoned step leaves no
  // trace. skipped: the scale falls to max(scale · backoff_factor, min). applied: after growth_interval
  // applied steps in a row the scale grows to min(scale · growth_factor, max).
  void record(StepOutcome outcome);

  // True if the last step was skipped although the scale was already at its minimum. Lowering it further does
  // not help: the model diverged.
  bool exhausted() const { return exhausted_; }

  const LossScaleState& state() const { return state_; }
  // Throws UsageError for a scale outside [min, max] or a negative count.
  void restore(const LossScaleState& state);

 private:
  LossScaleOptions options_;
  LossScaleState state_;
  bool exhausted_ = false;
};

}  // namespace tessera
