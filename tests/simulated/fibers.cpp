#include "tests/simulated/fibers.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tessera::simulated {

namespace {

constexpr std::size_t kStackBytes = 256 << 10, kGuardBytes = 4096;

#if defined(__SANITIZE_ADDRESS__)
void start_switch(void** fake_stack, const void* stack, std::size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
}
void finish_switch(void* fake_stack, const void** stack, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, stack, bytes);
}
void unpoison(void* memory, std::size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
void start_switch(void**, const void*, std::size_t) {}
void finish_switch(void*, const void**, std::size_t*) {}
void unpoison(void*, std::size_t) {}
#endif

// GCC must not look into functions that switch: it would take the way back for one that is never gone, and
// registers for kept.
[[noreturn, gnu::noipa]] void jump(void** place) { __builtin_longjmp(place, 1); }

}  // namespace

// A fiber's stack, which lies behind a page that nothing may touch. The next fiber gets its memory.
class Stack {
 public:
  Stack() {
    if (!spare().empty()) {
      memory_ = spare().back();
      spare().pop_back();
      return;
    }
    void* memory = ::mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    ::mprotect(memory, kGuardBytes, PROT_NONE);
    memory_ = static_cast<char*>(memory);
  }
  ~Stack() {
    unpoison(begin(), kStackBytes);
    spare().push_back(memory_);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  char* begin() const { return memory_ + kGuardBytes; }

 private:
  static std::vector<char*>& spare() {
    static std::vector<char*> all;
    return all;
  }
  char* memory_ = nullptr;
};

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(std::make_unique<Stack>()) {}
Fiber::~Fiber() = default;

// The fiber's own against those of whom it was entered by, or the other way around.
void Fiber::exchange() {
  std::swap(state_, device::thread_state());
  Exceptions now;
  void* const globals = abi::__cxa_get_globals();
  std::memcpy(&now, globals, sizeof now);
  std::memcpy(globals, &exceptions_, sizeof now);
  exceptions_ = now;
}

void Fiber::begin(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low);
  finish_switch(nullptr, &self->callers_stack_, &self->callers_stack_bytes_);
  self->body_();
  self->ended_ = true;
  start_switch(nullptr, self->callers_stack_, self->callers_stack_bytes_);
  jump(self->callers_);
}

[[gnu::noipa]] void Fiber::first_entry() {
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack_->begin();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&context, reinterpret_cast<void (*)()>(&Fiber::begin), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
  setcontext(&context);
}

[[gnu::noipa]] void Fiber::enter() {
  exchange();
  void* fake_stack = nullptr;
  start_switch(&fake_stack, stack_->begin(), kStackBytes);
  if (__builtin_setjmp(callers_) == 0) {
    if (std::exchange(begun_, true)) jump(own_);
    first_entry();
  }
  finish_switch(fake_stack, nullptr, nullptr);
  exchange();
}

[[gnu::noipa]] void Fiber::leave() {
  start_switch(&fake_stack_, callers_stack_, callers_stack_bytes_);
  if (__builtin_setjmp(own_) == 0) jump(callers_);
  finish_switch(fake_stack_, &callers_stack_, &callers_stack_bytes_);
}

}  // namespace tessera::simulated
