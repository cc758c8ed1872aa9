// Threads are fibers that run until a barrier or their end, where the next one begins on the same stack. A
// context is made by ucontext, once, and switched by the compiler's own setjmp, which calls no library:
// switches take most of a kernel's time.
#include "tests/emulated_cuda/fibers.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace tessera::emulated_cuda {
namespace {

constexpr std::size_t kStackBytes = 128 << 10;

enum class State { fresh, ready, at_warp, at_block, done };

using Place = void* [5];  // of __builtin_setjmp

struct Stack {
  char bytes[kStackBytes];
  Place place;  // where what runs on it was left
  bool begun = false;
};

struct Fiber {
  State state = State::fresh;
  dim3 index;
  std::unique_ptr<Stack> stack;          // none before it first runs
  std::array<double, 2> exchanged = {};  // by shuffles, in turn
  unsigned shuffles = 0;
};

std::vector<Fiber> fibers;
std::size_t threads_of_block = 0;
std::size_t current = 0;
bool backwards = false;  // the block's fibers are its threads from the last to the first
Place scheduler;
const std::function<void()>* body = nullptr;

// GCC must not look into functions that switch: it would take the way back for one that is never gone, and
// registers for kept.
[[noreturn, gnu::noipa]] void jump(Place& place) { __builtin_longjmp(place, 1); }

// Of the fiber that runs: until the scheduler lets it go on.
[[gnu::noipa]] void pause(State state) {
  Fiber& self = fibers[current];
  self.state = state;
  if (__builtin_setjmp(self.stack->place) == 0) jump(scheduler);
}

void become(std::size_t index) {
  current = index;
  threadIdx = fibers[index].index;
}

// Runs one thread after the other, of this block and of those to come.
void enter() {
  for (;;) {
    (*body)();
    const std::size_t next = current + 1;
    if (next < threads_of_block && fibers[next].state == State::fresh) {  // without a switch, on this stack
      fibers[current].state = State::done;
      std::swap(fibers[current].stack, fibers[next].stack);
      become(next);
    } else {
      pause(State::done);
    }
  }
}

[[gnu::noipa]] void resume(std::size_t index) {
  become(index);
  if (__builtin_setjmp(scheduler) != 0) return;
  Fiber& fiber = fibers[index];
  if (!fiber.stack) fiber.stack = std::make_unique<Stack>();
  Stack& stack = *fiber.stack;
  if (std::exchange(stack.begun, true)) jump(stack.place);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack.bytes;
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

void run_fibers(std::size_t threads) {
  threads_of_block = threads;
  for (std::size_t i = 0; i < threads; ++i) {
    fibers[i].state = State::fresh;
    fibers[i].shuffles = 0;
  }
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
  const std::size_t self = current, place = self % kWarp;
  const auto mirrored = [](std::size_t lane) { return backwards ? kWarp - 1 - lane : lane; };
  const unsigned turn =
      fibers[self].shuffles++ % 2;  // two: a lane may be at its next one before others have read
  fibers[self].exchanged[turn] = value;
  pause(State::at_warp);
  return fibers[self - place + mirrored(source(mirrored(place)))].exchanged[turn];
}

}  // namespace

void run_block(dim3 threads, const std::function<void()>& thread) {
  const std::size_t count = std::size_t{threads.x} * threads.y;
  body = &thread;
  blockDim = threads;
  if (fibers.size() < count) fibers.resize(count);
  backwards = count % kWarp == 0 && !backwards;  // in turn: a missing barrier shows in one of them
  for (unsigned i = 0; i < count; ++i) {
    const unsigned place = backwards ? static_cast<unsigned>(count) - 1 - i : i;
    fibers[i].index = {place % threads.x, place / threads.x};
  }
  run_fibers(count);
}

std::size_t running_fiber() { return current; }
bool runs_backwards() { return backwards; }

}  // namespace tessera::emulated_cuda

void __syncthreads() { tessera::emulated_cuda::pause(tessera::emulated_cuda::State::at_block); }

double __shfl_xor_sync(unsigned, double value, int lane_mask) {
  return tessera::emulated_cuda::shuffle(
      value, [&](std::size_t lane) { return lane ^ static_cast<std::size_t>(lane_mask); });
}

float __shfl_xor_sync(unsigned mask, float value, int lane_mask) {
  return static_cast<float>(__shfl_xor_sync(mask, double{value}, lane_mask));
}
