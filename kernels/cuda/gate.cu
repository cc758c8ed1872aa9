#include "kernels/gate.h"

#include "kernels/cuda/sweep.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

__global__ void add_loss_kernel(const LossTotal* total, double* to) {
  to[0] += total->sum;
  to[1] += static_cast<double>(total->counted);
}

// One block: a thread adds up a flat's squares over the ranks, the first thread those of the flats in order.
__global__ void __launch_bounds__(kBlock) set_gate_kernel(GateArguments a, UpdateGate* gate) {
  __shared__ double sums[kBlock];
  double square_sum = 0.0;
  for (int first = 0; first < a.flats; first += kBlock) {
    const int flat = first + static_cast<int>(threadIdx.x);
    const int count = a.flats - first < kBlock ? a.flats - first : kBlock;
    __syncthreads();
    if (flat < a.flats) sums[threadIdx.x] = a.square_sum(flat);
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < count; ++i) square_sum += sums[i];
  }
  if (threadIdx.x == 0) *gate = gate_of(a, square_sum);
}

}  // namespace

void add_loss(const ComputeContext& context, const LossTotal* total, double* to) {
  start(context, "add_loss", {1, 1}, add_loss_kernel, total, to);
}

void set_gate(const ComputeContext& context, const GateArguments& arguments, UpdateGate* gate) {
  start(context, "set_gate", {1, kBlock}, set_gate_kernel, arguments, gate);
}

}  // namespace tessera::kernels::cuda
