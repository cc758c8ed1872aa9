// Whether all ranks give write() the same, and where not.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/communicator.h"
#include "tessera/engine.h"

namespace tessera {

struct GivenValues {
  const Layout& layout;
  ParameterId parameter = 0;
  StateKind state = StateKind::master;
  std::int64_t begin = 0;  // in the parameter, of the first value
  std::span<const float> values;
};

// Collective. Throws a CommunicationError that names the first rank whose values, or arguments, are other
// than rank 0's; of values also the first element that differs on that rank, and both values. Bits are
// compared: a NaN equals itself, and zeros of different sign differ. Moves a few words a rank where all are
// equal, else at most one block of values.
void compare_given(Communicator& ranks, const GivenValues& given);

}  // namespace tessera
