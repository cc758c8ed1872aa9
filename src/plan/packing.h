// Packs ranges of memory whose lifetimes are known: gives each an address. Knows nothing of programs or
// buffers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/program.h"

namespace tessera {

// A range that holds something during each of `lives` (ascending, disjoint, ends included) at one address.
struct PackItem {
  std::int64_t bytes = 0;
  std::vector<Lifetime> lives;
};

struct Packing {
  std::vector<std::int64_t> offsets;  // by item; 0 for one that never lives
  std::int64_t height = 0;            // the highest end of an item that lives
  std::int64_t live_peak = 0;         // the largest sum of live bytes
  std::int64_t bound = 0;             // no packing with one address per item is lower; at least live_peak
};

// Items whose lives meet never overlap; the rest may. Offsets are sums of items' bytes, and so multiples of
// whatever all of those are. Equal items give equal packings, on any machine.
Packing pack(std::span<const PackItem> items);

}  // namespace tessera
