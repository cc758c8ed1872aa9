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
#include <cstring>
#include <memory>
#include <string>
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

// Where the source calls a barrier or a shuffle.
struct Site {
  const char* file = nullptr;
  unsigned line = 0;
  bool operator==(const Site& other) const {
    return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
  }
  std::string text() const { return std::string(file) + ":" + std::to_string(line); }
};

struct Fiber {
  State state = State::fresh;
  unsigned mask = 0;  // of its shuffle
  Site site;          // of its barrier or shuffle
  dim3 index;
  std::unique_ptr<Stack> stack;          // none before it first runs
  std::array<double, 2> exchanged = {};  // by shuffles, in turn
  unsigned shuffles = 0;
};

std::vector<Fiber> fibers;
std::size_t threads_of_block = 0;
std::size_t current = 0;
unsigned lane_xor = 0;  // of the block's order: a warp's fibers are its lanes, each ^ this
const char* kernel = "";
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

std::string thread_text(const Fiber& fiber) {
  return "thread (" + std::to_string(fiber.index.x) + ", " + std::to_string(fiber.index.y) + ")";
}

[[noreturn]] void fail_apart(const char* what, const Fiber& one, const Fiber& other) {
  fail(thread_text(one) + " waits at " + one.site.text() + ", " + thread_text(other) + " at " +
       other.site.text() + ": " + what);
}

// Lets the lanes go on that the mask of fiber i names, if all of them wait. Fibers [begin, end) are its warp.
bool pass_shuffle(std::size_t i, std::size_t begin, std::size_t end) {
  const Fiber& own = fibers[i];
  for (unsigned place = 0; place < kWarp; ++place) {
    if ((own.mask >> (place ^ lane_xor) & 1u) == 0) continue;
    if (begin + place >= end)
      fail(own.site.text() + ": a shuffle's mask names a lane that the block has not");
    const Fiber& lane = fibers[begin + place];
    if (lane.state == State::done)
      fail(own.site.text() + ": a shuffle's mask names " + thread_text(lane) + ", which has ended");
    if (lane.state != State::at_warp) return false;
    if (lane.mask != own.mask) fail_apart("lanes shuffle with different masks", own, lane);
    if (!(lane.site == own.site)) fail_apart("lanes of a warp are at different shuffles", own, lane);
  }
  for (unsigned place = 0; place < kWarp; ++place)
    if ((own.mask >> (place ^ lane_xor) & 1u) != 0) fibers[begin + place].state = State::ready;
  return true;
}

bool pass_shuffles(std::size_t begin, std::size_t end) {
  bool any = false;
  for (std::size_t i = begin; i < end; ++i)
    if (fibers[i].state == State::at_warp) any |= pass_shuffle(i, begin, end);
  return any;
}

// Threads that have ended are not waited for, as on GPUs since Volta.
bool pass_barrier(std::size_t threads) {
  const Fiber* first = nullptr;
  for (std::size_t i = 0; i < threads; ++i) {
    if (fibers[i].state == State::done) continue;
    if (fibers[i].state != State::at_block) return false;
    if (first == nullptr) first = &fibers[i];
    if (!(fibers[i].site == first->site))
      fail_apart("threads of a block are at different barriers", *first, fibers[i]);
  }
  for (std::size_t i = 0; i < threads; ++i)
    if (fibers[i].state == State::at_block) fibers[i].state = State::ready;
  return first != nullptr;
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
      passed |= pass_shuffles(warp, std::min<std::size_t>(threads, warp + kWarp));
    passed = passed || pass_barrier(threads);
    if (passed) continue;
    for (std::size_t i = 0; i < threads; ++i)
      if (fibers[i].state != State::done)
        fail(thread_text(fibers[i]) + " waits at " + fibers[i].site.text() + ", which others do not reach");
    return;
  }
}

// The value of the lane `lane ^ lane_mask`; its own where that is none of a warp's.
double shuffle(unsigned mask, double value, int lane_mask, const Site& site) {
  const std::size_t self = current, place = self % kWarp;
  Fiber& own = fibers[self];
  const std::size_t lane = place ^ lane_xor;
  if ((mask >> lane & 1u) == 0) fail(site.text() + ": a shuffle's mask does not name a lane that calls it");
  const unsigned turn = own.shuffles++ % 2;  // two: a lane may be at its next one before others have read
  own.exchanged[turn] = value;
  own.mask = mask;
  own.site = site;
  pause(State::at_warp);
  const std::size_t source = lane ^ static_cast<std::size_t>(lane_mask);
  if (source >= kWarp) return value;
  if ((mask >> source & 1u) == 0) fail(site.text() + ": a shuffle reads a lane that its mask does not name");
  return fibers[self - place + (source ^ lane_xor)].exchanged[turn];
}

}  // namespace

ThreadOrder ThreadOrder::of_turn(unsigned turn, unsigned warps, unsigned drawn) {
  const bool other = turn % 2 == 1;
  if (turn % 4 < 2) return {.warps_backwards = other, .lane_xor = other ? kWarp - 1 : 0};
  const unsigned lanes = drawn % kWarp, first = drawn / kWarp % warps;
  return {.warps_backwards = other,
          .first_warp = other ? (warps - first) % warps : first,
          .lane_xor = other ? lanes ^ (kWarp - 1) : lanes};
}

void run_block(dim3 threads, const ThreadOrder& order, const std::function<void()>& thread) {
  const unsigned count = threads.x * threads.y, warps = count / kWarp;
  const bool whole = count % kWarp == 0;
  body = &thread;
  blockDim = threads;
  lane_xor = whole ? order.lane_xor : 0;
  if (fibers.size() < count) fibers.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    unsigned place = i;
    if (whole) {
      const unsigned turned = (i / kWarp + order.first_warp) % warps;
      place = (order.warps_backwards ? warps - 1 - turned : turned) * kWarp + (i % kWarp ^ lane_xor);
    }
    fibers[i].index = {place % threads.x, place / threads.x};
  }
  run_fibers(count);
}

std::size_t running_fiber() { return current; }

void fail(const std::string& what) {
  std::fprintf(stderr, "emulated CUDA: kernel %s, block (%u, %u), thread (%u, %u): %s\n", kernel, blockIdx.x,
               blockIdx.y, threadIdx.x, threadIdx.y, what.c_str());
  std::abort();
}
void set_running_kernel(const char* name) { kernel = name; }

}  // namespace tessera::emulated_cuda

void __syncthreads(const char* file, unsigned line) {
  using namespace tessera::emulated_cuda;
  fibers[current].site = {file, line};
  pause(State::at_block);
}

double __shfl_xor_sync(unsigned mask, double value, int lane_mask, const char* file, unsigned line) {
  return tessera::emulated_cuda::shuffle(mask, value, lane_mask, {file, line});
}

float __shfl_xor_sync(unsigned mask, float value, int lane_mask, const char* file, unsigned line) {
  return static_cast<float>(__shfl_xor_sync(mask, double{value}, lane_mask, file, line));
}
