#include "tests/engine/watch_allocations.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "tests/program/sanitized.h"

namespace {

std::atomic<bool> watching{false};
std::atomic<std::int64_t> large{0}, small{0}, largest{0};

[[maybe_unused]] void note(std::size_t bytes) {
  if (!watching.load(std::memory_order_relaxed)) return;
  const auto taken = static_cast<std::int64_t>(bytes);
  (taken >= tessera::testing::kLargeBytes ? large : small).fetch_add(1);
  for (std::int64_t seen = largest.load(); seen < taken && !largest.compare_exchange_weak(seen, taken);) {
  }
}

}  // namespace

void tessera::testing::watch_allocations() {
  large = small = largest = 0;
  watching = true;
}

tessera::testing::Allocations tessera::testing::stop_watching() {
  watching = false;
  return {large, small, largest};
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The C library's own functions behind the ones that this program replaces for all its libraries.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept {
  note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  note(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) noexcept {
  note(bytes);
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  note(bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}
void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  note(bytes);
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
}
#endif
