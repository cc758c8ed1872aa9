// Splits an update into updates of parts.
#pragma once

#include "kernels/check.h"
#include "kernels/optimizer.h"

namespace tessera::kernels {

// The update of elements [begin, begin + numel), with the coefficients of `all`.
inline OptimizerArguments piece_of(const OptimizerArguments& all, std::int64_t begin, std::int64_t numel) {
  OptimizerArguments own = all;
  own.numel = numel;
  own.gradient = element(all.gradient, all.gradient_type, begin);
  own.master += begin;
  own.rounding.first += begin;
  for (int k = 0; k < all.moment_count; ++k) own.moments[k] = element(all.moments[k], all.moment_type, begin);
  if (all.parameter != nullptr) own.parameter = element(all.parameter, all.parameter_type, begin);
  own.runs = {};
  return own;
}

// Calls function(arguments) for every run, or once for all elements if there are no runs.
template <class Function>
void each_run(const OptimizerArguments& all, Function&& function) {
  if (all.runs.empty()) return function(all);
  std::int64_t begin = 0;
  for (const CoefficientRun& run : all.runs) {
    OptimizerArguments own = piece_of(all, begin, run.numel);
    own.coefficients = run.coefficients;
    own.group = run.group;
    function(own);
    begin += run.numel;
  }
}

// Calls function(std::integral_constant<int, count>()). The rule must allow `count` moments.
template <class Coefficients, int kCount = Coefficients::kMostMoments, class Function>
void with_moments(int count, const Function& function) {
  if constexpr (kCount > Coefficients::kLeastMoments)
    if (count < kCount) return with_moments<Coefficients, kCount - 1>(count, function);
  function(std::integral_constant<int, kCount>());
}

}  // namespace tessera::kernels
