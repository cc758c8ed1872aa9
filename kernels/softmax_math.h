// How the statistics of several ranks become those of all columns of a row, and its loss. Both backends
// compile it.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/exp_math.h"
#include "kernels/host_device.h"
#include "kernels/softmax.h"

namespace tessera::kernels {

// Combines what all ranks say of `row`, from statistics [ranks, rows]. Those of a rank alone are returned to
// the bit, since e^0 is 1.
TESSERA_HOST_DEVICE inline SoftmaxStatistics combined(const SoftmaxStatistics* statistics, int ranks,
                                                      std::int64_t rows, std::int64_t row) {
  SoftmaxStatistics all = {-INFINITY, 0.0f, 0.0f};
  for (int rank = 0; rank < ranks; ++rank) {
    const float maximum = statistics[rank * rows + row].maximum;
    if (maximum > all.maximum) all.maximum = maximum;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const SoftmaxStatistics& own = statistics[rank * rows + row];
    all.sum += own.sum * exp_element(own.maximum - all.maximum);
    all.target_logit += own.target_logit;
  }
  return all;
}

TESSERA_HOST_DEVICE inline float softmax_loss(const SoftmaxStatistics& all) {
  return static_cast<float>(std::log(static_cast<double>(all.sum)) + all.maximum - all.target_logit);
}

}  // namespace tessera::kernels
