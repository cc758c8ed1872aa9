// What runs a kernel's threads, and who may touch the emulated GPU's memory.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::emulated_cuda {

// Has the stream call `thread` once for every thread of every block, as kernels see it. cudaErrorInvalidValue
// for a launch that a GPU would refuse. Ends the process where threads wait at barriers that the others never
// reach.
cudaError_t launch(cudaStream_t stream, dim3 blocks, dim3 threads, std::size_t shared_bytes,
                   std::function<void()> thread);

// cudaErrorInvalidValue where the kernel has to ask for so much first (cudaFuncSetAttribute), and has not.
cudaError_t allow_shared(const void* kernel, std::size_t bytes);

// Before a launch. A GPU's driver loads a kernel when it is launched first, and lets no other call in before
// the GPU has done all that it was given. Ends the process where that would be never.
void load(const void* kernel, cudaStream_t stream);

// Of the running block; filled with NaN before each block.
float* dynamic_shared();

// Of the running thread, as in kernels/cuda/copy_async.cuh. In every second block what is copied arrives at
// once, in the others only when it is waited for.
void copy_async(void* shared, const void* from);
void close_copies();
void wait_for_copies(std::size_t open);

// While one lives, the GPU's memory may be touched: by its kernels and copies. Else the process would end by
// a signal. One thread at a time has one.
class Access {
 public:
  explicit Access(int gpu);
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  int gpu_;
};

// Those that have been neither destroyed nor aborted.
int nccl_communicators();
// Of all ranks, since the process began.
struct NcclSetUp {
  int unique_ids = 0, splits = 0;
  int sums = 0;  // ncclReduceScatter, by each rank
};
NcclSetUp nccl_set_up();
struct NcclMemory {
  int registered = 0;                     // ranges, with all communicators
  int arenas = 0;                         // by ncclMemAlloc, that were not given back
  std::vector<std::string> misuses = {};  // of these, and waits for good, since the process began
};
NcclMemory nccl_memory();
// From now on ncclMemAlloc, or ncclCommRegister, fails on this GPU; -1: on none.
void refuse_nccl_memory(int gpu);
void refuse_nccl_registration(int gpu);
// From now on those of a rank report an error, without a call; -1: of none.
void lose_network(int rank);

// Of ncclGetVersion, and of what the library is refused for.
void set_nccl_version(int version);
// Of CUDA's calls, since the process began: those about what is another GPU's than the calling thread's
// current one, where they would make a context.
int calls_on_another_gpu();

// Kernels, products and fillings of memory that streams were given, by the op that gave them, since the
// process began.
void count_launch(const char* op);
std::map<std::string, int> launches();

// Streams of the highest priority, since the process began.
int urgent_streams();
// Copies from memory that is neither a GPU's nor pinned, since the process began: a GPU may hold the caller
// up until it comes to one.
int pageable_copies();
// Waits of streams for words of the host's memory, since the process began.
int host_waits();

// From now on work that is given to `stream` is not done before release().
void hold(cudaStream_t stream);
void hold_behind_next_mark(cudaStream_t stream);  // of the stream's: an event, or a word that it writes
void release(cudaStream_t stream);
class StreamWork;
std::shared_ptr<StreamWork> work_of(cudaStream_t stream);
// Until its streams have done all that they were given. After kForGood that is a misuse, in nccl_memory().
void wait_for_gpu(int ordinal, const std::string& who);
constexpr std::chrono::seconds kForGood{4};

}  // namespace tessera::emulated_cuda
