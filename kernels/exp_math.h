// e^x, and the activations made of it, for one element. Uses correctly rounded operations only. The CPU's
// vector code (cpu/v16-inl.h, cpu/elementwise.cpp, cpu/swiglu.cpp) does the same operations in the same
// order, so that all backends agree bit for bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/float_types.h"
#include "kernels/host_device.h"

namespace tessera::kernels {

// e^x to 2 ulp: the Taylor polynomial of e^r to r^7 on |r| <= ln(2)/2, scaled by 2^n in two steps, so that
// neither step over- or underflows early. NaN stays NaN.
TESSERA_HOST_DEVICE inline float exp_element(float x) {
  if (x != x) return x;
  const float magic = 0x1.8p23f;  // adding it rounds to an integer, held in the low bits
  const float raised = x > -105.0f ? x : -105.0f;
  const float clamped = raised < 89.0f ? raised : 89.0f;
  const float shifted = std::fma(clamped, 0x1.715476p0f, magic);  // log2(e)
  const float n = shifted - magic;
  float r = std::fma(n, -0x1.62e4p-1f, clamped);  // ln 2, high part
  r = std::fma(n, -0x1.7f7d1cp-20f, r);           // ln 2, low part
  float p = 1.0f / 5040.0f;
  p = std::fma(p, r, 1.0f / 720.0f);
  p = std::fma(p, r, 1.0f / 120.0f);
  p = std::fma(p, r, 1.0f / 24.0f);
  p = std::fma(p, r, 1.0f / 6.0f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  const std::int32_t exponent = bits_as<std::int32_t>(shifted) - 0x4b400000;
  const std::int32_t half = exponent >> 1;
  const float scale1 = bits_as<float>((half + 127) << 23);
  const float scale2 = bits_as<float>((exponent - half + 127) << 23);
  return p * scale1 * scale2;
}

// 1 / d of an approximation that is off by one unit in the last place at most, by a step of Newton's. It is
// rounded correctly for all significands but one: of d = 2 - 2^-23 the approximation must not be 0.5.
TESSERA_HOST_DEVICE inline float refined_reciprocal(float d, float approximation) {
  return std::fma(approximation, std::fma(-d, approximation, 1.0f), approximation);
}

// 1 / d, rounded once, for a d that is 1 or more, or NaN. From 2^126 on it is 0, as then the quotient is no
// more than the smallest normal number. A GPU divides numbers from 1 to 2^126 by just these operations; but
// to find out whether they are, and to call a function if not, would take as many again.
TESSERA_HOST_DEVICE inline float reciprocal_element(float d) {
#ifdef __CUDA_ARCH__
  float approximation;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(approximation) : "f"(d));
  const float quotient = refined_reciprocal(d, approximation);
#else
  const float quotient = 1.0f / d;
#endif
  return d >= 0x1p126f ? 0.0f : quotient;
}

TESSERA_HOST_DEVICE inline float sigmoid_element(float x) {
  return reciprocal_element(1.0f + exp_element(-x));
}

// silu(gate) * up, silu(x) = x / (1 + e^-x) (Shazeer 2020).
TESSERA_HOST_DEVICE inline float swiglu_element(float gate, float up) {
  return gate * sigmoid_element(gate) * up;
}

struct SwigluGradients {
  float gate, up;
};
// With s = sigmoid(gate): silu = gate s, silu' = s (1 + gate (1 - s)).
TESSERA_HOST_DEVICE inline SwigluGradients swiglu_gradients(float gate, float up, float gradient) {
  const float s = sigmoid_element(gate);
  const float slope = s * std::fma(gate, 1.0f - s, 1.0f);
  return {gradient * up * slope, gradient * (gate * s)};
}

inline constexpr float kGeluSqrt2OverPi = 0.7978845608028654f;
inline constexpr float kGeluCubic = 0.044715f;

// The tanh form of gelu equals x s with s = 1 / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3).
TESSERA_HOST_DEVICE inline float gelu_gate(float x) {
  const float inner = std::fma(x * x, kGeluCubic, 1.0f);
  const float minus_2u = x * (-2.0f * kGeluSqrt2OverPi) * inner;
  return reciprocal_element(1.0f + exp_element(minus_2u));
}

TESSERA_HOST_DEVICE inline float gelu_element(float x) { return x * gelu_gate(x); }

// gelu' is s + x s (1 - s) 2 u', u' = sqrt(2/pi) (1 + 3 0.044715 x^2). For large |x|, s (1 - s) is 0 and u'
// may be infinite. So the product is computed with x clamped to [-20, 20].
TESSERA_HOST_DEVICE inline float gelu_derivative(float x) {
  const float s = gelu_gate(x);
  const float raised = x > -20.0f ? x : -20.0f;
  const float bounded = raised < 20.0f ? raised : 20.0f;
  const float inner = std::fma(bounded * bounded, 3.0f * kGeluCubic, 1.0f);
  const float slope = bounded * (2.0f * kGeluSqrt2OverPi) * inner;
  return std::fma(s * (1.0f - s), slope, s);
}

}  // namespace tessera::kernels
