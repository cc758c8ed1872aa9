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

struct KernelCall {
  const void* kernel;
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;  // of dynamic_shared()
};
// Has the stream call `thread` once for every thread of every block, as kernels see it. The order of blocks,
// and that of a block's threads, are drawn (EMULATED_CUDA_SEED, a number, draws others). With
// EMULATED_CUDA_COMPARE=n every n-th launch of a kernel with several blocks runs twice, in two orders, from
// equal memory, and ends the process where the results differ. As the runtime's call: fails for a launch that
// a GPU would refuse for its grid, its launch bounds, its registers or its shared memory, and leaves the
// error to cudaGetLastError. The first launch of a kernel loads it. Ends the process where fibers.h says so.
cudaError_t launch(cudaStream_t stream, const KernelCall& call, std::function<void()> thread);

// cudaErrorInvalidValue where the kernel has to ask for so much first (cudaFuncSetAttribute), and has not.
cudaError_t allow_shared(const void* kernel, std::size_t bytes);

// Before a launch. A GPU's driver loads a kernel when it is launched first, and lets no other call in before
// the GPU has done all that it was given. Ends the process where that would be never. False on a stream that
// is captured, which a load spoils.
bool load(const void* kernel, cudaStream_t stream);

// Of the running block.
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

// Memory of a GPU for a library, whatever the calling thread's GPU is; cudaFree gives it back.
void* take_on(int gpu, std::size_t bytes);
// What the handle of the emulated cuBLASLt takes, once for each GPU, and what a communicator of NCCL's takes.
constexpr std::size_t kMatmulBytes = 64 << 10, kCommunicatorBytes = 32 << 10;
// Whether all these bytes lie in one allocation of this GPU's memory, or of pinned memory.
bool reaches(int gpu, const void* begin, std::size_t bytes);

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
// From now on the driver serves CUDA up to this version (13000 is 13.0); 0: none is installed.
void install_driver(int version);
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
// From now on graphs are not instantiated on this GPU; -1: on none.
void refuse_graphs(int gpu);
// Waits of streams for words of the host's memory, since the process began.
int host_waits();
// Functions of the host that streams call, since the process began.
int host_functions();
// What the driver makes of cuStreamWaitValue32 and cuStreamWriteValue32 from now on.
enum class StreamMemory {
  works,
  missing,       // it has neither
  refused,       // both return an error
  loses_writes,  // both return success; what is written does not arrive
  loses_waits    // likewise; no stream waits
};
void set_stream_memory(StreamMemory how);

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
