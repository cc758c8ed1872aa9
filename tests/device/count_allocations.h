// Counts every operator new of a test program that is linked with count_allocations.cpp.
#pragma once

#include <cstdint>

namespace tessera {

std::int64_t allocations_so_far();

}  // namespace tessera
