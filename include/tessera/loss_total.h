// The sum of a microbatch's losses.
#pragma once

#include <cstdint>

namespace tessera {

struct LossTotal {
  double sum = 0.0;          // of the losses of counted rows, in a fixed order
  std::int64_t counted = 0;  // rows that have a target
};

}  // namespace tessera
