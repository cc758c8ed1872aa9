// Counts what a test program takes from the system while watching: every malloc, calloc, realloc,
// aligned_alloc, posix_memalign and mmap. Linked with watch_allocations.cpp; under a sanitizer, which has an
// allocator of its own, nothing is counted.
#pragma once

#include <cstdint>

namespace tessera::testing {

inline constexpr std::int64_t kLargeBytes = 4096;

struct Allocations {
  std::int64_t large = 0;  // of kLargeBytes or more
  std::int64_t small = 0;
  std::int64_t largest_bytes = 0;
};

// Of all threads of the process.
void watch_allocations();
Allocations stop_watching();

}  // namespace tessera::testing
