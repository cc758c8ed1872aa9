// Packs more items than can be held against each other one by one: in hardly more time than it takes to sort
// them. Where pack() can look at all pairs, it mostly comes nearer to the least height.
#pragma once

#include <span>

#include "src/plan/packing.h"

namespace tessera {

// As pack(), of at least one item, all of which live and have bytes; the bound is live_peak.
Packing sweep(std::span<const PackItem> items);

}  // namespace tessera
