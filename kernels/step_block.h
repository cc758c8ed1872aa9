// What changes from step to step, in memory of a device. Kernels that are given its address read it where
// they run. So a step's work can be captured once, as a CUDA graph, and be done again with other values. The
// same values give the same bits whether they come by this way or as arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gate_math.h"
#include "kernels/host_device.h"
#include "kernels/philox_math.h"

namespace tessera::kernels {

// The numbers of one training step. The host writes them in two parts. The gate is written by set_gate()
// where the step's own sums decide, else by the host.
struct StepBlock {
  // Whether updates change anything, and the gradient's scale.
  UpdateGate gate;
  // Known when the step begins.
  struct Begin {
    std::int64_t updates = 0;  // applied so far; what random keys are made of
    float loss_scale = 1.0f;
  } begin;
  // Known when its updates begin.
  struct Update {
    std::int64_t step = 1;                   // of this update, from 1
    alignas(8) std::byte numbers[216] = {};  // StepCoefficients of the optimizer's rule
  } update;
};
static_assert(sizeof(StepBlock) == 256);

// The most parameter groups whose coefficients a StepBlock has room for.
inline constexpr int kMostStepGroups = 14;

// The coefficients of a rule (optim/rules.h): what all groups share, and each group's own.
template <class Coefficients>
struct StepCoefficients {
  Coefficients all;
  typename Coefficients::Group groups[kMostStepGroups];
};

// A number of a kernel that may change from step to step: `at`, where not null, has it in memory of the
// device.
struct StepScale {
  float value = 1.0f;
  const float* at = nullptr;

  TESSERA_HOST_DEVICE float get() const { return at == nullptr ? value : *at; }
};

// Where a random key comes from that changes from step to step: that of (seed, stream, *updates), with
// `updates` in memory of the device.
struct StepKey {
  std::uint64_t seed = 0, stream = 0;
  const std::int64_t* updates = nullptr;  // StepBlock::Begin::updates; null: there is none

  // In memory of the device; `otherwise` where there is none.
  TESSERA_HOST_DEVICE std::uint64_t get(std::uint64_t otherwise) const {
    return updates == nullptr ? otherwise : key_of(seed, stream, static_cast<std::uint64_t>(*updates));
  }
};

}  // namespace tessera::kernels
