#include "kernels/gate.h"

#include "kernels/ops.h"

namespace tessera::kernels::cpu {

void add_loss(const ComputeContext&, const LossTotal* total, LossSum* sum) {
  exact::add(*sum, total->sum, total->counted);
}

void set_gate(const ComputeContext&, const GateArguments& arguments, UpdateGate* gate) {
  SquareSum squares;
  for (int rank = 0; rank < arguments.ranks; ++rank) exact::add(squares, arguments.square_sum(rank));
  *gate = gate_of(arguments, exact::value_of(squares));
}

}  // namespace tessera::kernels::cpu
