// What a stand-in for one of NVIDIA's libraries asks of the emulated GPU. Such a stand-in is a shared library
// of its own, which the code under test loads as it loads the real one; the emulated GPU is in the program.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>

namespace tessera::emulated_cuda {

struct GpuServices {
  int (*current_gpu)();
  int (*gpu_of)(cudaStream_t stream);
  int (*compute_capability)(int gpu);  // 90 for 9.0
  // What the handles of a library take of the GPU, once.
  void (*take_for_handles)(int gpu);
  // Whether all these bytes lie in one allocation of this GPU's memory, or of pinned memory.
  bool (*reaches)(int gpu, const void* begin, std::size_t bytes);
  // Before a kernel is given. The first time on a GPU it is loaded: see load() in emulator.h.
  void (*load)(const void* kernel, cudaStream_t stream);
  // Behind all that the stream was given before, with access to its GPU's memory.
  void (*give)(cudaStream_t stream, std::function<void()> kernel);
  void (*note_refusal)(const std::string& why);
  // A matrix product and the least alignment, in bytes, of its operands, from column to column.
  void (*note_product)(int alignment, const std::string& what);
};

// What stand-ins have noted, for tests.
// Why the calling thread's last call was refused; empty if none was.
std::string last_refusal();
struct NotedProducts {
  int count = 0;
  int least_alignment = 256;
  std::string least_aligned = {};  // one product with the least
};
// Since the process began, or since they were forgotten.
NotedProducts noted_products();
void forget_products();

}  // namespace tessera::emulated_cuda

// Exported by every program that has the emulated GPU (tests/emulated_cuda/CMakeLists.txt).
extern "C" const tessera::emulated_cuda::GpuServices* emulated_gpu_services();
