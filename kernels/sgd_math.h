// The SGD update of one element, shared by every backend. Only correctly rounded operations, as in
// adamw_math.h.
#pragma once

#include <cmath>

#include "kernels/host_device.h"

namespace tessera::kernels {

struct SgdCoefficients {
  float gradient_scale = 1.0f;
  float learning_rate = 0.0f;
  float momentum = 0.0f;
  float weight_decay = 0.0f;  // weight_decay * parameter is added to the gradient
  bool nesterov = false;
};

// What the momentum, and Nesterov's look ahead, add: the gradient with the decay.
TESSERA_HOST_DEVICE inline float sgd_gradient(const SgdCoefficients& c, float gradient, float parameter) {
  return std::fma(c.weight_decay, parameter, gradient * c.gradient_scale);
}

// The momentum of one element; one that is kept in bf16 is then rounded (moment_math.h).
TESSERA_HOST_DEVICE inline float sgd_momentum(const SgdCoefficients& c, float g, float momentum) {
  return std::fma(c.momentum, momentum, g);
}

// The master parameter by the momentum as it is kept.
TESSERA_HOST_DEVICE inline float sgd_step(const SgdCoefficients& c, float g, float parameter,
                                          float momentum) {
  const float direction = c.nesterov ? std::fma(c.momentum, momentum, g) : momentum;
  return std::fma(-c.learning_rate, direction, parameter);
}

}  // namespace tessera::kernels
