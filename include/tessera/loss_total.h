// What a microbatch's losses add up to.
#pragma once

#include <cstdint>

namespace tessera {

struct LossTotal {
  double sum = 0.0;          // of the losses of counted rows, in a fixed order
  std::int64_t counted = 0;  // rows that have a target
};

}  // namespace tessera
