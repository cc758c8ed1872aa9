// Packs ranges of memory whose lifetimes are known: who may share addresses, and where each lies. Knows
// nothing of programs or buffers.
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
  std::int64_t bound = 0;             // the largest sum of live bytes: no packing is lower
};

// Items whose lives meet never overlap; the rest may. `bytes` should be multiples of the wanted alignment:
// all offsets are sums of them. The same items give the same packing.
Packing pack(std::span<const PackItem> items);

}  // namespace tessera
