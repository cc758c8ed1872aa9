// Threads are fibers that run until a barrier or their end. A context is made by ucontext, once, and switched
// by setjmp, which costs no system call.
#include "tests/emulated_cuda/emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/emulated_cuda/stream_work.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace tessera::emulated_cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kStackBytes = 128 << 10;

enum class State { fresh, ready, at_warp, at_block, done };

struct Fiber {
  State state = State::fresh;
  dim3 index;
  std::jmp_buf place;
  double exchanged = 0;           // by shuffles
  std::unique_ptr<char[]> stack;  // none before it first runs
};

std::vector<Fiber> fibers;
std::size_t current = 0;
std::jmp_buf scheduler;
const std::function<void()>* body = nullptr;
std::vector<float> shared_memory;

void pause(State state) {
  Fiber& self = fibers[current];
  self.state = state;
  if (_setjmp(self.place) == 0) _longjmp(scheduler, 1);
}

void enter() {
  for (;;) {  // a thread of one block after the other
    (*body)();
    pause(State::done);
  }
}

void resume(std::size_t index) {
  Fiber& fiber = fibers[index];
  current = index;
  threadIdx = fiber.index;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.stack) _longjmp(fiber.place, 1);
  fiber.stack.reset(new char[kStackBytes]);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  setcontext(&context);
}

// Lets fibers [begin, end) go on if all that have not ended wait at `barrier`.
bool pass(std::size_t begin, std::size_t end, State barrier) {
  bool any = false;
  for (std::size_t i = begin; i < end; ++i) {
    if (fibers[i].state != barrier && fibers[i].state != State::done) return false;
    any |= fibers[i].state == barrier;
  }
  for (std::size_t i = begin; i < end; ++i)
    if (fibers[i].state == barrier) fibers[i].state = State::ready;
  return any;
}

void run_block(std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i) fibers[i].state = State::fresh;
  for (;;) {
    for (std::size_t i = 0; i < threads; ++i)
      if (fibers[i].state == State::fresh || fibers[i].state == State::ready) resume(i);
    bool passed = false;
    for (std::size_t warp = 0; warp < threads; warp += kWarp)
      passed |= pass(warp, std::min<std::size_t>(threads, warp + kWarp), State::at_warp);
    passed = passed || pass(0, threads, State::at_block);
    if (passed) continue;
    for (std::size_t i = 0; i < threads; ++i)
      if (fibers[i].state != State::done) {
        std::fprintf(stderr, "emulated CUDA: thread %zu waits at a barrier that others do not reach\n", i);
        std::abort();
      }
    return;
  }
}

// The value of the fiber that `source` names, by lane; all lanes of the warp take part.
template <class Source>
double shuffle(double value, const Source& source) {
  const std::size_t self = current, lane = self % kWarp;
  fibers[self].exchanged = value;
  pause(State::at_warp);
  const double found = fibers[self - lane + source(lane)].exchanged;
  pause(State::at_warp);
  return found;
}

}  // namespace

float* dynamic_shared() { return shared_memory.data(); }

namespace {

void run(int gpu, dim3 blocks, dim3 threads, std::size_t shared_bytes, const std::function<void()>& thread) {
  const std::size_t count = std::size_t{threads.x} * threads.y;
  const Access access(gpu);
  body = &thread;
  blockDim = threads;
  gridDim = blocks;
  if (fibers.size() < count) fibers.resize(count);
  for (unsigned i = 0; i < count; ++i) fibers[i].index = {i % threads.x, i / threads.x};
  for (unsigned y = 0; y < blocks.y; ++y)
    for (unsigned x = 0; x < blocks.x; ++x) {
      blockIdx = {x, y};
      shared_memory.assign(shared_bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
      run_block(count);
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

void __syncthreads() { tessera::emulated_cuda::pause(tessera::emulated_cuda::State::at_block); }

float __shfl_xor_sync(unsigned, float value, int lane_mask) {
  return static_cast<float>(tessera::emulated_cuda::shuffle(
      value, [&](std::size_t lane) { return lane ^ static_cast<std::size_t>(lane_mask); }));
}

double __shfl_down_sync(unsigned, double value, unsigned delta, int width) {
  return tessera::emulated_cuda::shuffle(value, [&](std::size_t lane) {
    const auto part = static_cast<std::size_t>(width);
    return lane % part + delta < part ? lane + delta : lane;
  });
}
