// What a step adds up and decides where its updates run, so that the host need not wait for it in between.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "kernels/gate_math.h"
#include "tessera/loss_total.h"

namespace tessera::kernels {

// to[0] += total->sum and to[1] += total->counted, in memory of the device.
void add_loss(const ComputeContext& context, const LossTotal* total, double* to);

// Scalars of all ranks, [ranks][numel], and the slots of a rank's that the decision is made of.
struct GateArguments {
  const double* scalars = nullptr;
  int ranks = 0;
  std::int64_t numel = 0;
  int weight = 0, weight_on_device = 0;  // these two add up to the rank's weight
  int abandoned = 0;                     // above 0 where the rank abandons the step
  int loss_scale = 0;                    // the first rank's counts
  std::uint32_t agreed = 0;  // bit k: slot k is to be the same on all ranks; else the gate is closed
  int square_sums = 0;       // the first flat's; the next are two slots behind each other
  int flats = 0;
  double max_norm = 0.0;  // 0: no clipping
};

// Sums over ranks in rank order, over flats of these sums in their order; then gate_of(). `gate` is in memory
// of the device.
void set_gate(const ComputeContext& context, const GateArguments& arguments, UpdateGate* gate);

}  // namespace tessera::kernels
