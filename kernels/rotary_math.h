// The rotation angles of rotary position embedding, for every backend: frequencies, computed once on the
// host, and the cosine and sine of one angle. These use correctly rounded operations only, so that all
// backends agree bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "kernels/host_device.h"

namespace tessera::kernels {

// Stretches low frequencies so that a model takes a longer context than in its first training (Llama 3.1).
// Wavelengths above original_context / low_frequency tokens become `factor` times longer. Those below
// original_context / high_frequency stay. Between the two, both are mixed linearly.
struct RotaryScaling {
  double factor = 1.0;  // 1: none
  double low_frequency = 1.0;
  double high_frequency = 4.0;
  double original_context = 8192.0;
};

// Frequencies [head_channels / 2] in radians per token: theta^(-2i / head_channels) (Su et al. 2021), rounded
// to fp32, because published weights were trained with that.
inline std::vector<float> rotary_frequencies(std::int64_t head_channels, double theta,
                                             const RotaryScaling& scaling = {}) {
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < head_channels / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(head_channels);
    double frequency = static_cast<double>(static_cast<float>(1.0 / std::pow(theta, exponent)));
    if (scaling.factor != 1.0) {
      const double waves = scaling.original_context * frequency / (2.0 * std::numbers::pi);
      double kept = (waves - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
      kept = kept < 0.0 ? 0.0 : kept > 1.0 ? 1.0 : kept;
      frequency = (1.0 - kept) * frequency / scaling.factor + kept * frequency;
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

struct Rotation {
  float cosine, sine;
};

// Cosine and sine of the angle place * frequency, which is rounded to fp32 as in published models. Uses
// Taylor polynomials in float64 on |r| <= pi/4. The error is below 1e-12 for angles below 2^20.
TESSERA_HOST_DEVICE inline Rotation rotation_of(std::int64_t place, float frequency) {
  const double angle = static_cast<double>(static_cast<float>(place) * frequency);
  const double magic = 0x1.8p52;  // adding it rounds to an integer
  const double quarters = angle * (2.0 / std::numbers::pi) + magic - magic;
  // pi/2 in two parts; the first has 33 bits, so its product is exact.
  double r = angle - quarters * 0x1.921fb544p0;
  r -= quarters * 0x1.0b4611a626331p-34;
  const double r2 = r * r;
  double sine = 1.0 / 6227020800.0;
  sine = sine * r2 - 1.0 / 39916800.0;
  sine = sine * r2 + 1.0 / 362880.0;
  sine = sine * r2 - 1.0 / 5040.0;
  sine = sine * r2 + 1.0 / 120.0;
  sine = sine * r2 - 1.0 / 6.0;
  sine = sine * r2 * r + r;
  double cosine = 1.0 / 479001600.0;
  cosine = cosine * r2 - 1.0 / 3628800.0;
  cosine = cosine * r2 + 1.0 / 40320.0;
  cosine = cosine * r2 - 1.0 / 720.0;
  cosine = cosine * r2 + 1.0 / 24.0;
  cosine = cosine * r2 - 1.0 / 2.0;
  cosine = cosine * r2 + 1.0;
  switch (static_cast<std::int64_t>(quarters) & 3) {
    case 0:
      return {static_cast<float>(cosine), static_cast<float>(sine)};
    case 1:
      return {static_cast<float>(-sine), static_cast<float>(cosine)};
    case 2:
      return {static_cast<float>(-cosine), static_cast<float>(-sine)};
    default:
      return {static_cast<float>(sine), static_cast<float>(-cosine)};
  }
}

// Rotates the two channels of one pair, in place; `back` rotates by the negative angle.
TESSERA_HOST_DEVICE inline void rotate_element(Rotation rotation, bool back, float& a, float& b) {
  const float sine = back ? -rotation.sine : rotation.sine;
  const float first = std::fma(a, rotation.cosine, -(b * sine));
  b = std::fma(b, rotation.cosine, a * sine);
  a = first;
}

}  // namespace tessera::kernels
