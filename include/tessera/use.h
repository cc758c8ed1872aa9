// A use of a unit: the trainer computes one pass of it. Plain data.
#pragma once

#include <cstdint>

#include "tessera/pass.h"
#include "tessera/unit_spec.h"

namespace tessera {

// A use is one instruction, unless other uses run inside it; then it is an opening and a closing one.
enum class UseEdge : std::uint8_t { whole, open, close };

// One use of a unit, in the order the trainer makes them.
struct Use {
  UnitId unit = 0;
  Pass pass = Pass::forward;
  UseEdge edge = UseEdge::whole;
  bool operator==(const Use&) const = default;
};

}  // namespace tessera
