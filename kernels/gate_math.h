// From a step's sums to its decision: the same expressions on the host and where updates run, so that both
// decide alike, bit for bit.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::kernels {

// A decision that is made where the update runs: whether it runs at all, and the gradient's scale. Lets a
// step be skipped on a device that the host does not wait for.
struct UpdateGate {
  double gradient_scale = 1.0;  // unscale * clip / weight, as in AdamWSettings
  std::int32_t apply = 1;       // 0: the update changes nothing
};

// See GradientClip::factor(): of a norm that is finite.
TESSERA_HOST_DEVICE inline double clip_factor(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

// What brings the gradient of loss_scale · Σ loss to that of the mean.
TESSERA_HOST_DEVICE inline double unscale_of(double weight, double loss_scale) {
  return 1.0 / (weight * loss_scale);
}

// Of the mean gradient.
TESSERA_HOST_DEVICE inline double norm_of(double square_sum, double unscale) {
  return std::sqrt(square_sum) * unscale;
}

// Closed where a rank abandoned the step, or differs from the others, where nothing was weighed, and where a
// gradient is not finite.
TESSERA_HOST_DEVICE inline UpdateGate gate_of(bool refused, double weight, double loss_scale,
                                              double square_sum, double max_norm) {
  const double unscale = unscale_of(weight, loss_scale);
  const double norm = norm_of(square_sum, unscale);
  const bool finite = norm <= DBL_MAX;  // false for NaN, too
  if (refused || !(weight > 0.0) || !finite) return {.gradient_scale = 0.0, .apply = 0};
  return {.gradient_scale = clip_factor(norm, max_norm) * unscale, .apply = 1};
}

}  // namespace tessera::kernels
