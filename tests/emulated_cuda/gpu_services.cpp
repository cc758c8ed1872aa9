#include "tests/emulated_cuda/gpu_services.h"

#include <mutex>
#include <set>
#include <utility>

#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/kernels.h"
#include "tests/emulated_cuda/stream_work.h"

namespace tessera::emulated_cuda {
namespace {

thread_local std::string refusal;

struct Noted {
  std::mutex mutex;  // guards the next
  NotedProducts products;
};
Noted& noted() {
  static auto* const one = new Noted;
  return *one;
}

int current_gpu() {
  int ordinal = 0;
  cudaGetDevice(&ordinal);
  return ordinal;
}

void take_for_handles(int gpu) {
  static std::mutex mutex;
  static std::set<int> taken;
  const std::lock_guard lock(mutex);
  if (taken.insert(gpu).second) take_on(gpu, kMatmulBytes);
}

void load_kernel(const void* kernel, cudaStream_t stream) { load(kernel, stream); }

int gpu_of(cudaStream_t stream) { return work_of(stream)->ordinal(); }

void give(cudaStream_t stream, std::function<void()> kernel) {
  count_launch("matmul");
  const auto work = work_of(stream);
  work->give([gpu = work->ordinal(), kernel = std::move(kernel)] {
    const Access access(gpu);
    kernel();
  });
}

void note_refusal(const std::string& why) { refusal = why; }

void note_product(int alignment, const std::string& what) {
  const std::lock_guard lock(noted().mutex);
  NotedProducts& products = noted().products;
  ++products.count;
  if (alignment >= products.least_alignment) return;
  products.least_alignment = alignment;
  products.least_aligned = what;
}

}  // namespace

std::string last_refusal() { return refusal; }

NotedProducts noted_products() {
  const std::lock_guard lock(noted().mutex);
  return noted().products;
}

void forget_products() {
  const std::lock_guard lock(noted().mutex);
  noted().products = {};
}

}  // namespace tessera::emulated_cuda

const tessera::emulated_cuda::GpuServices* emulated_gpu_services() {
  using namespace tessera::emulated_cuda;
  static constexpr GpuServices kServices = {.current_gpu = current_gpu,
                                            .gpu_of = gpu_of,
                                            .compute_capability = compute_capability,
                                            .take_for_handles = take_for_handles,
                                            .reaches = reaches,
                                            .load = load_kernel,
                                            .give = give,
                                            .note_refusal = note_refusal,
                                            .note_product = note_product};
  return &kServices;
}
