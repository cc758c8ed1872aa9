#include "kernels/gate.h"

#include "kernels/cuda/sweep.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

__global__ void add_loss_kernel(const LossTotal* total, LossSum* sum) {
  exact::add(*sum, total->sum, total->counted);
}

// One warp. A thread adds up a word of the squares over the ranks, and what is carried into the next; another
// finds the first element that is not finite.
__global__ void __launch_bounds__(kWarp) set_gate_kernel(GateArguments a, UpdateGate* gate) {
  constexpr int kWords = sizeof(SquareSum::sum) / sizeof(std::uint64_t);
  __shared__ std::uint64_t sums[kWords], carries[kWords];
  __shared__ std::int64_t nonfinite;
  const int w = threadIdx.x;
  if (w < kWords) {
    std::uint64_t sum = 0, carried = 0;
    for (int rank = 0; rank < a.ranks; ++rank) {
      const auto word = bits_as<std::uint64_t>(a.at(rank, a.squares + w));
      sum += word;
      carried += sum < word;
    }
    sums[w] = sum;
    carries[w] = carried;
  }
  if (w == kWords) {
    nonfinite = 0;
    for (int rank = 0; rank < a.ranks; ++rank) {
      const auto own = bits_as<std::int64_t>(a.at(rank, a.squares + kWords));
      if (own > nonfinite) nonfinite = own;
    }
  }
  __syncthreads();
  if (w > 0) return;
  SquareSum squares{.nonfinite = nonfinite};
  std::uint64_t carry = 0;
  for (int i = 0; i < kWords; ++i)
    squares.sum.words[i] = exact::add_word(sums[i], i > 0 ? carries[i - 1] : 0, carry);
  *gate = gate_of(a, exact::value_of(squares));
}

}  // namespace

void add_loss(const ComputeContext& context, const LossTotal* total, LossSum* sum) {
  start(context, "add_loss", {1, 1}, add_loss_kernel, total, sum);
}

void set_gate(const ComputeContext& context, const GateArguments& arguments, UpdateGate* gate) {
  start(context, "set_gate", {1, kWarp}, set_gate_kernel, arguments, gate);
}

}  // namespace tessera::kernels::cuda
