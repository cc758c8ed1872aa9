// Launches of kernels, the shared memory of the block that runs, and what it copies there.
#include "tests/emulated_cuda/emulator.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/emulated_cuda/fibers.h"
#include "tests/emulated_cuda/stream_work.h"

namespace tessera::emulated_cuda {
namespace {

constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kCopiedBytes = 16;  // of an asynchronous copy

struct Copy {
  void* to;
  const void* from;
  void run() const { std::memcpy(to, from, kCopiedBytes); }
};
using Copies = std::deque<std::vector<Copy>>;  // on their way, by group; the last one is not closed

std::vector<Copies> copies_of_fibers;
std::vector<float> shared_memory;

}  // namespace

float* dynamic_shared() { return shared_memory.data(); }

void copy_async(void* shared, const void* from) {
  const auto place = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  const std::uintptr_t begin = place(shared_memory.data());
  const std::uintptr_t end = begin + shared_memory.size() * sizeof(float);
  if ((place(shared) | place(from)) % kCopiedBytes != 0 || place(shared) < begin ||
      place(shared) + kCopiedBytes > end) {
    std::fprintf(stderr, "emulated CUDA: an asynchronous copy of 16 bytes that a GPU would refuse\n");
    std::abort();
  }
  const Copy copy = {shared, from};
  if (runs_backwards())
    copy.run();
  else
    copies_of_fibers[running_fiber()].back().push_back(copy);
}

void close_copies() { copies_of_fibers[running_fiber()].emplace_back(); }

void wait_for_copies(std::size_t open) {
  auto& copies = copies_of_fibers[running_fiber()];
  while (copies.size() > open + 1) {
    for (const Copy& copy : copies.front()) copy.run();
    copies.pop_front();
  }
}

namespace {

void run(int gpu, dim3 blocks, dim3 threads, std::size_t shared_bytes, const std::function<void()>& thread) {
  const Access access(gpu);
  gridDim = blocks;
  for (unsigned y = 0; y < blocks.y; ++y)
    for (unsigned x = 0; x < blocks.x; ++x) {
      blockIdx = {x, y};
      shared_memory.assign(shared_bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
      copies_of_fibers.resize(std::size_t{threads.x} * threads.y);
      for (Copies& copies : copies_of_fibers)
        if (copies.size() != 1 || !copies[0].empty()) copies.assign(1, {});
      run_block(threads, thread);
    }
}

}  // namespace

cudaError_t launch(cudaStream_t stream, dim3 blocks, dim3 threads, std::size_t shared_bytes,
                   std::function<void()> thread) {
  const std::size_t count = std::size_t{threads.x} * threads.y * threads.z;
  const bool fits = count >= 1 && count <= kMostThreads && blocks.x >= 1 && blocks.x <= 0x7fffffffu &&
                    blocks.y >= 1 && blocks.y <= 0xffffu && blocks.z == 1 && threads.z == 1;
  if (!fits) return cudaErrorInvalidValue;
  const std::shared_ptr<StreamWork> work = work_of(stream);
  work->give([=, gpu = work->ordinal(), thread = std::move(thread)] {
    run(gpu, blocks, threads, shared_bytes, thread);
  });
  return cudaSuccess;
}

}  // namespace tessera::emulated_cuda
