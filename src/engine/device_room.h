// Whether a GPU has room for a rank's arena beside what libraries have taken there, found before the arena is
// taken.
#pragma once

#include <cstdint>

#include "tessera/communicator.h"
#include "tessera/memory_budget.h"

namespace tessera {

// One rank's, in bytes.
struct DeviceRoom {
  std::int64_t arena_bytes = 0;    // what the plan needs
  std::int64_t library_bytes = 0;  // what communicators and libraries have taken
  std::int64_t free_bytes = 0;     // beside them
};

// What there is now on a GPU of which `used_before` bytes were in use before libraries were opened.
DeviceRoom device_room(int ordinal, std::int64_t arena_bytes, std::int64_t used_before);

// Collective, of ranks that each have a budget of their own. Where one does not fit, all ranks throw and name
// it: UsageError for the budget, EnvironmentError for the memory that is free.
void check_device_room(Communicator& ranks, const MemoryBudget& budget, const DeviceRoom& room);

}  // namespace tessera
