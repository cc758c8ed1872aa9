#include "kernels/cuda/advance_word.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/start.cuh"

namespace tessera::kernels::cuda {
namespace {

__global__ void __launch_bounds__(1) advance_word_kernel(volatile std::uint32_t* word) {
  __threadfence_system();  // what came before is seen first
  *word = *word + 1;
}

}  // namespace

void advance_word(const ComputeContext& context, std::atomic<std::uint32_t>& word) {
  start(context, "advance_word", {1, 1}, advance_word_kernel,
        reinterpret_cast<volatile std::uint32_t*>(&word));
}

}  // namespace tessera::kernels::cuda
