// Packs more items than can be compared pair by pair, in little more time than it takes to sort them. For
// fewer items pack() usually gives a lower height.
#pragma once

#include <span>

#include "src/plan/packing.h"

namespace tessera {

// Like pack(), for at least one item; all items must live and have bytes. The bound is live_peak.
Packing sweep(std::span<const PackItem> items);

}  // namespace tessera
