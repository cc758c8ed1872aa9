// A file of its own: inlined beside its callers, GCC takes malloc and operator delete for a mismatch.
#include "tests/nn/notable_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::int64_t> notable{0};
}

void* operator new(std::size_t bytes) {
  if (bytes >= tessera::testing::kNotableBytes) notable.fetch_add(1);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

std::int64_t tessera::testing::notable_allocations() { return notable.load(); }
