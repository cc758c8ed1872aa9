#include "kernels/gate.h"

#include "kernels/ops.h"

namespace tessera::kernels::cpu {

void add_loss(const ComputeContext&, const LossTotal* total, double* to) {
  to[0] += total->sum;
  to[1] += static_cast<double>(total->counted);
}

void set_gate(const ComputeContext&, const GateArguments& arguments, UpdateGate* gate) {
  double square_sum = 0.0;
  for (int flat = 0; flat < arguments.flats; ++flat) square_sum += arguments.square_sum(flat);
  *gate = gate_of(arguments, square_sum);
}

}  // namespace tessera::kernels::cpu
