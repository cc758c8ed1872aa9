#include "kernels/gate.h"

#include "kernels/ops.h"

namespace tessera::kernels::cpu {

void add_loss(const ComputeContext&, const LossTotal* total, double* to) {
  to[0] += total->sum;
  to[1] += static_cast<double>(total->counted);
}

void set_gate(const ComputeContext&, const GateArguments& a, UpdateGate* gate) {
  const auto over_ranks = [&](auto value_of) {
    double sum = 0.0;
    for (int rank = 0; rank < a.ranks; ++rank) sum += value_of(a.scalars + rank * a.numel);
    return sum;
  };
  double square_sum = 0.0;
  for (int flat = 0; flat < a.flats; ++flat)
    square_sum += over_ranks([&](const double* slots) { return slots[a.square_sums + 2 * flat]; });
  const double weight =
      over_ranks([&](const double* slots) { return slots[a.weight] + slots[a.weight_on_device]; });
  const double abandoned = over_ranks([&](const double* slots) { return slots[a.abandoned]; });
  bool agree = true;
  for (int slot = 0; a.agreed >> slot != 0; ++slot)
    for (int rank = 1; rank < a.ranks && (a.agreed >> slot & 1) != 0; ++rank)
      agree &= a.scalars[rank * a.numel + slot] == a.scalars[slot];
  *gate = gate_of(!agree || abandoned > 0.0, weight, a.scalars[a.loss_scale], square_sum, a.max_norm);
}

}  // namespace tessera::kernels::cpu
