// The AdamW and Adam update of one element, shared by every backend. Only correctly rounded
// operations, each written out (fma where fused, contraction off elsewhere), so that all backends agree bit
// for bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::kernels {

// Computed once per step on the host, in double, then rounded: see make_adamw_coefficients.
struct AdamWCoefficients {
  float gradient_scale = 1.0f;  // unscale * clip / weight
  float beta1 = 0.9f;
  float one_minus_beta1 = 0.1f;
  float beta2 = 0.95f;
  float one_minus_beta2 = 0.05f;
  float step = 0.0f;               // learning_rate / (1 - beta1^t)
  float denominator_scale = 1.0f;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 1e-8f;
  float decay = 1.0f;  // 1 - learning_rate * weight_decay, or 1 where not decoupled
  float l2 = 0.0f;     // weight_decay, or 0 where decoupled
};

struct AdamWSettings {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = true;  // true: AdamW; false: Adam, weight_decay * parameter added to the gradient
  double gradient_scale = 1.0;
  std::int64_t step = 1;  // updates applied with this one, from 1
};

inline AdamWCoefficients make_adamw_coefficients(const AdamWSettings& settings) {
  const double steps = static_cast<double>(settings.step);
  const double correction1 = 1.0 - std::pow(settings.beta1, steps);
  const double correction2 = 1.0 - std::pow(settings.beta2, steps);
  const double decoupled_decay = settings.decoupled ? settings.weight_decay : 0.0;
  return {.gradient_scale = static_cast<float>(settings.gradient_scale),
          .beta1 = static_cast<float>(settings.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - settings.beta2),
          .step = static_cast<float>(settings.learning_rate / correction1),
          .denominator_scale = static_cast<float>(1.0 / std::sqrt(correction2)),
          .epsilon = static_cast<float>(settings.epsilon),
          .decay = static_cast<float>(1.0 - settings.learning_rate * decoupled_decay),
          .l2 = static_cast<float>(settings.decoupled ? 0.0 : settings.weight_decay)};
}

// Updates both moments of one element; those that are kept in bf16 are then rounded (moment_math.h).
TESSERA_HOST_DEVICE inline void adamw_moments(const AdamWCoefficients& c, float gradient, float parameter,
                                              float& m, float& v) {
  const float g = std::fma(c.l2, parameter, gradient * c.gradient_scale);
  m = std::fma(c.beta1, m, c.one_minus_beta1 * g);
  v = std::fma(c.beta2, v, (c.one_minus_beta2 * g) * g);
}

// The master parameter by the moments as they are kept.
TESSERA_HOST_DEVICE inline float adamw_step(const AdamWCoefficients& c, float parameter, float m, float v) {
  const float denominator = std::fma(std::sqrt(v), c.denominator_scale, c.epsilon);
  return std::fma(-c.step, m / denominator, parameter * c.decay);
}

}  // namespace tessera::kernels
