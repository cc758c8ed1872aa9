// Launches of kernels: what a GPU would refuse, in which order blocks and their threads run, and, if asked
// for, whether the result depends on it.
#include "tests/emulated_cuda/emulator.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated_cuda/block_memory.h"
#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/fibers.h"
#include "tests/emulated_cuda/kernels.h"
#include "tests/emulated_cuda/memory.h"
#include "tests/emulated_cuda/stream_work.h"

namespace tessera::emulated_cuda {
namespace {

constexpr unsigned kMostThreads = 1024, kMostBlocksAcross = 0x7fffffff, kMostBlocksDown = 0xffff;
constexpr unsigned kRegisterUnit = 8;  // a thread's registers are rounded up to it

unsigned long setting(const char* name, unsigned long without) {
  const char* const text = std::getenv(name);
  return text == nullptr ? without : std::strtoul(text, nullptr, 10);
}

// As splitmix64.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// An order of `count` blocks: from one that is drawn, by steps that have no divisor in common with `count`.
class BlockOrder {
 public:
  BlockOrder(std::uint64_t count, std::uint64_t drawn) : count_(count), begin_(drawn % count) {
    step_ = drawn / count % count;
    while (std::gcd(step_, count_) != 1) step_ = (step_ + 1) % count_;
  }
  std::uint64_t at(std::uint64_t i) const {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(i) * step_ + begin_) % count_);
  }

 private:
  std::uint64_t count_, begin_, step_;
};

struct Run {
  const Kernel& kernel;
  dim3 blocks, threads;
  std::size_t shared_bytes;
  const std::function<void()>& thread;
};

unsigned blocks_begun = 0;  // since the process began
std::uint64_t runs = 0;     // of launches, those for comparison included

void run_once(const Run& run) {
  static const std::uint64_t seed = setting("EMULATED_CUDA_SEED", 1);
  const std::uint64_t across = run.blocks.x, count = across * run.blocks.y;
  const unsigned threads = run.threads.x * run.threads.y;
  const BlockOrder order(count, mix(seed + mix(++runs)));
  set_running_kernel(run.kernel.name.c_str());
  gridDim = run.blocks;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t block = order.at(i);
    blockIdx = {static_cast<unsigned>(block % across), static_cast<unsigned>(block / across)};
    const unsigned turn = blocks_begun++;
    const auto drawn = static_cast<unsigned>(mix(seed + turn / 2));
    begin_block_memory(run.kernel, run.shared_bytes, threads, turn % 2 == 0);
    run_block(run.threads, ThreadOrder::of_turn(turn, std::max(threads / kWarp, 1u), drawn), run.thread);
  }
}

using Contents = std::vector<std::pair<std::byte*, std::vector<std::byte>>>;

Contents contents_of_gpu() {
  Contents contents;
  for (const auto& [begin, bytes] : memory().reached) contents.push_back({begin, {begin, begin + bytes}});
  return contents;
}

// Runs a launch once more, in another order of blocks and threads, and compares all that the GPU's memory
// holds.
void run_twice(const Run& run) {
  const Contents before = contents_of_gpu();
  run_once(run);
  const Contents first = contents_of_gpu();
  for (const auto& [begin, bytes] : before) std::memcpy(begin, bytes.data(), bytes.size());
  run_once(run);
  for (const auto& [begin, bytes] : first) {
    if (std::memcmp(begin, bytes.data(), bytes.size()) == 0) continue;
    const auto at = std::mismatch(bytes.begin(), bytes.end(), begin).first - bytes.begin();
    fail("its result depends on the order of blocks and threads, first in byte " + std::to_string(at) +
         " of an allocation of " + std::to_string(bytes.size()));
  }
}

// Whether this launch is one of those to compare.
bool is_compared(const void* kernel, const Run& run) {
  static const unsigned long every = setting("EMULATED_CUDA_COMPARE", 0);
  static std::map<const void*, unsigned long> launches;
  if (every == 0 || std::uint64_t{run.blocks.x} * run.blocks.y == 1) return false;
  return launches[kernel]++ % every == 0;
}

unsigned registers_of_block(int of_thread, std::size_t threads) {
  const unsigned warps = static_cast<unsigned>((threads + kWarp - 1) / kWarp);
  return (static_cast<unsigned>(of_thread) + kRegisterUnit - 1) / kRegisterUnit * kRegisterUnit * kWarp *
         warps;
}

// What a GPU of one of the architectures would say.
cudaError_t check_launch(const KernelCall& call) {
  const auto [blocks, threads] = std::pair(call.blocks, call.threads);
  const std::size_t count = std::size_t{threads.x} * threads.y * threads.z;
  if (count < 1 || count > kMostThreads || threads.z != 1) return cudaErrorInvalidConfiguration;
  if (blocks.x < 1 || blocks.x > kMostBlocksAcross || blocks.y < 1 || blocks.y > kMostBlocksDown ||
      blocks.z != 1)
    return cudaErrorInvalidConfiguration;
  if (const auto& limits = kernel_of(call.kernel).limits) {
    if (limits->most_threads > 0 && count > static_cast<std::size_t>(limits->most_threads))
      return cudaErrorInvalidValue;
    for (const int registers : limits->registers)
      if (registers_of_block(registers, count) > kRegistersOfBlock) return cudaErrorLaunchOutOfResources;
  }
  return allow_shared(call.kernel, call.shared_bytes);
}

}  // namespace

cudaError_t launch(cudaStream_t stream, const KernelCall& call, std::function<void()> thread) {
  return call_runtime("cudaLaunchKernel", [&] {
    if (const cudaError_t refused = check_launch(call); refused != cudaSuccess) return refused;
    if (!load(call.kernel, stream)) return cudaErrorStreamCaptureUnsupported;
    const std::shared_ptr<StreamWork> work = work_of(stream);
    work->give([call, gpu = work->ordinal(), thread = std::move(thread)] {
      const Access access(gpu);
      if (fault_of(gpu) != cudaSuccess) return;
      const Run run = {kernel_of(call.kernel), call.blocks, call.threads, call.shared_bytes, thread};
      if (is_compared(call.kernel, run))
        run_twice(run);
      else
        run_once(run);
    });
    return cudaSuccess;
  });
}

}  // namespace tessera::emulated_cuda
