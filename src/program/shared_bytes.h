// Pieces of values that have bytes in common.
#pragma once

#include "tessera/activations.h"

namespace tessera {

// Whether the values, at their offsets in what they are pieces of, have bytes of one memory.
constexpr bool share_bytes(const ValueSpec& a, const ValueSpec& b) {
  return a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

}  // namespace tessera
