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

// `momentum` is the buffer of one element; where coefficients.momentum is 0 it may be any variable.
TESSERA_HOST_DEVICE inline void sgd_element(const SgdCoefficients& c, float gradient, float& parameter,
                                            float& momentum) {
  const float g = std::fma(c.weight_decay, parameter, gradient * c.gradient_scale);
  momentum = std::fma(c.momentum, momentum, g);
  const float direction = c.nesterov ? std::fma(c.momentum, momentum, g) : momentum;
  parameter = std::fma(-c.learning_rate, direction, parameter);
}

}  // namespace tessera::kernels
