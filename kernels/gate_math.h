// From a step's sums to its decision: the same expressions on the host and where updates run, so that both
// decide alike, bit for bit.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/exact_sum.h"
#include "kernels/host_device.h"

namespace tessera::kernels {

// A decision that is made where the update runs: whether it runs at all, and the gradient's scale. Lets a
// step be skipped on a device that the host does not wait for.
struct UpdateGate {
  double gradient_scale = 1.0;  // unscale * clip / weight
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

// Whether fp32 can scale a gradient by it: does not round it to 0, and has it at all.
TESSERA_HOST_DEVICE inline bool scales_fp32(double scale) {
  return scale <= FLT_MAX && static_cast<float>(scale) > 0.0f;
}

// Closed where a rank abandoned the step, or differs from the others in what they agree on, where nothing was
// weighed, where the weight is so large, or its product with the scale, that fp32 rounds what to scale by to
// 0 (nothing would be left of the gradient), or so small that it is none of fp32's, and where a gradient is
// not finite.
TESSERA_HOST_DEVICE inline UpdateGate gate_of(bool refused, double weight, double loss_scale,
                                              double square_sum, double max_norm) {
  const double unscale = unscale_of(weight, loss_scale);
  const double norm = norm_of(square_sum, unscale);
  const bool finite = norm <= DBL_MAX;  // false for NaN, too
  if (refused || !(weight > 0.0) || !finite) return {.gradient_scale = 0.0, .apply = 0};
  const double scale = clip_factor(norm, max_norm) * unscale;
  if (!scales_fp32(scale)) return {.gradient_scale = 0.0, .apply = 0};
  return {.gradient_scale = scale, .apply = 1};
}

// A sum that came as so many float64 values, as bits.
TESSERA_HOST_DEVICE inline SquareSum squares_at(const double* values) {
  SquareSum squares;
  for (std::uint64_t& word : squares.sum.words) word = bits_as<std::uint64_t>(*values++);
  squares.nonfinite = bits_as<std::int64_t>(*values);
  return squares;
}

// Scalars of all ranks, [ranks][numel], and the slots of a rank's that the decision is made of.
struct GateArguments {
  const double* scalars = nullptr;
  int ranks = 0;
  std::int64_t numel = 0;
  int weight = 0, counted = 0;  // these two add up to the rank's weight; the latter is an int64, as bits
  int abandoned = 0;            // above 0 where the rank abandons the step
  int loss_scale = 0;           // the first rank's counts
  std::uint32_t agreed = 0;     // bit k: slot k is to be the same on all ranks; else the gate is closed
  int squares = 0;              // where its SquareSum begins
  double max_norm = 0.0;        // 0: no clipping

  TESSERA_HOST_DEVICE double at(int rank, int slot) const { return scalars[rank * numel + slot]; }
  // Over ranks, in their order.
  TESSERA_HOST_DEVICE double sum(int slot) const {
    double total = 0.0;
    for (int rank = 0; rank < ranks; ++rank) total += at(rank, slot);
    return total;
  }
  // Exact over ranks.
  TESSERA_HOST_DEVICE double total_weight() const {
    NumberSum total;
    for (int rank = 0; rank < ranks; ++rank) {
      exact::add(total, at(rank, weight));
      exact::add(total, bits_as<std::int64_t>(at(rank, counted)));
    }
    return exact::value_of(total);
  }
  TESSERA_HOST_DEVICE SquareSum square_sum(int rank) const {
    return squares_at(scalars + rank * numel + squares);
  }
  TESSERA_HOST_DEVICE bool agree() const {
    bool same = true;
    for (int slot = 0; agreed >> slot != 0; ++slot)
      for (int rank = 1; rank < ranks && (agreed >> slot & 1) != 0; ++rank)
        same &= at(rank, slot) == at(0, slot);
    return same;
  }
};

// `square_sum`: that of all ranks.
TESSERA_HOST_DEVICE inline UpdateGate gate_of(const GateArguments& a, double square_sum) {
  return gate_of(!a.agree() || a.sum(a.abandoned) > 0.0, a.total_weight(), a.at(0, a.loss_scale), square_sum,
                 a.max_norm);
}

}  // namespace tessera::kernels
