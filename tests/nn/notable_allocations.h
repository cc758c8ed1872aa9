// Counts the operator new of a test program that takes as much as a small tensor; linked with
// notable_allocations.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::testing {

// The matmul library makes small lists of its arguments in every call; those stay below this.
inline constexpr std::size_t kNotableBytes = 128;

std::int64_t notable_allocations();

}  // namespace tessera::testing
