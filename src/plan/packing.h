// Packs ranges of memory with known lifetimes: gives each an address. Knows nothing of programs or buffers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/program.h"

namespace tessera {

// A range that is alive during each of `lives` (ascending, disjoint, ends included), always at one address.
struct PackItem {
  std::int64_t bytes = 0;
  std::vector<Lifetime> lives;
};

struct Packing {
  std::vector<std::int64_t> offsets;  // by item; 0 for an item that never lives
  std::int64_t height = 0;            // the highest end of any item that lives
  std::int64_t live_peak = 0;         // the largest sum of live bytes
  std::int64_t bound = 0;             // no packing with one address per item is lower; at least live_peak
};

// Items that are alive together never overlap; others may. Offsets are sums of items' bytes, so a common
// divisor of all items' bytes divides every offset. Equal items give equal packings, on any machine. The
// search ends at the bound, less than 4 KiB a GiB above it, or when it has done the work that it is allowed.
Packing pack(std::span<const PackItem> items);

}  // namespace tessera
