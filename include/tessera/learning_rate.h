// The learning rate as a pure function of the step, and the rules that scale it to another batch size.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/error.h"

namespace tessera {

// How the learning rate falls from its peak. A decay over n steps ends at total_steps. In step s, counted
// from 0, the share x = (s − (total_steps − n)) / n of the decay is done. So the first of the n steps is
// still at the peak, the last is one step short of the final value, and steps from total_steps on have that
// value. Megatron-LM, torchtitan and transformers do the same.
enum class LearningRateDecay : std::uint8_t {
  constant,             // none
  linear,               // over all steps after warmup: peak − x · (peak − final value)
  cosine,               // the same with (1 − cos πx) / 2 for x (Loshchilov and Hutter, SGDR, ICLR 2017)
  warmup_stable_decay,  // the peak, then linear over decay_steps (Hu et al., MiniCPM, 2024)
};

std::string_view name_of(LearningRateDecay decay);
// The inverse of name_of; throws UsageError listing the names for anything else.
LearningRateDecay parse_learning_rate_decay(std::string_view name);

struct LearningRateSchedule {
  LearningRateDecay decay = LearningRateDecay::constant;
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;  // 0: the first step already runs at the peak
  std::int64_t total_steps = 0;   // where the decay ends; required by all but constant
  // warmup_stable_decay only: the n above. At least 1 and at most total_steps − warmup_steps; the latter is
  // the same as linear. 8 steps with 4 and a final value of 0 run at 1, 1, 1, 1, 1, 3/4, 1/2 and 1/4 of the
  // peak. With decay_steps 1 no step before total_steps is below the peak.
  std::int64_t decay_steps = 0;
  double final_factor = 0.0;  // final value over peak, 0 to 1

  // Throws UsageError naming the field and its value.
  void check() const;

  // The learning rate of step `step`, counted from 0. During warmup it is (step + 1) / warmup_steps of the
  // peak, so that no step is wasted at 0. Steps from total_steps on have the final value. Throws UsageError
  // for a negative step. The schedule must pass check().
  double learning_rate(std::int64_t step) const;
};

// The factor on the learning rate when the batch grows by a factor k. none: 1. linear: k (the linear scaling
// rule, Goyal et al. 2017, for SGD). square_root: √k (usual for Adam; Malladi et al. 2022).
enum class BatchScaling : std::uint8_t { none, linear, square_root };

std::string_view name_of(BatchScaling rule);
BatchScaling parse_batch_scaling(std::string_view name);

// The learning rate to use at `batch` if `rate` was good at `base_batch`. Both batches are in the same unit
// (sequences or tokens), per step over all ranks and microbatches. Throws UsageError for a value that is not
// positive.
double scale_learning_rate(double rate, double batch, double base_batch, BatchScaling rule);

}  // namespace tessera
