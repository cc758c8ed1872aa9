// What a step adds up and decides where its updates run, so that the host need not wait for it in between.
#pragma once

#include "kernels/context.h"
#include "kernels/gate_math.h"
#include "tessera/loss_total.h"

namespace tessera::kernels {

// Adds `total` to `sum`, both in memory of the device.
void add_loss(const ComputeContext& context, const LossTotal* total, LossSum* sum);

// The squares of all ranks are added up; then gate_of(). `gate` is in memory of the device.
void set_gate(const ComputeContext& context, const GateArguments& arguments, UpdateGate* gate);

}  // namespace tessera::kernels
