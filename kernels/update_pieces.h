// Parts of an update, as updates of their own.
#pragma once

#include "kernels/check.h"
#include "kernels/optimizer.h"

namespace tessera::kernels {

// Elements [begin, begin + numel), but for the moments.
template <class Arguments>
Arguments piece_without_moments(Arguments all, std::int64_t begin, std::int64_t numel) {
  all.numel = numel;
  all.gradient = element(all.gradient, all.gradient_type, begin);
  all.master += begin;
  all.rounding.first += begin;
  if (all.parameter != nullptr) all.parameter = element(all.parameter, all.parameter_type, begin);
  return all;
}

// Elements [begin, begin + numel) with the coefficients of all.
inline AdamWArguments piece_of(const AdamWArguments& all, std::int64_t begin, std::int64_t numel) {
  AdamWArguments own = piece_without_moments(all, begin, numel);
  own.m = element(all.m, all.moment_type, begin);
  own.v = element(all.v, all.moment_type, begin);
  own.runs = {};
  return own;
}
inline SgdArguments piece_of(const SgdArguments& all, std::int64_t begin, std::int64_t numel) {
  SgdArguments own = piece_without_moments(all, begin, numel);
  if (all.momentum != nullptr) own.momentum = element(all.momentum, all.moment_type, begin);
  return own;
}

// Calls function(arguments) for every run, and for all elements where there are none.
template <class Function>
void each_run(const AdamWArguments& all, Function&& function) {
  if (all.runs.empty()) return function(all);
  std::int64_t begin = 0;
  for (const AdamWRun& run : all.runs) {
    AdamWArguments own = piece_of(all, begin, run.numel);
    own.coefficients.step = run.step;
    own.coefficients.decay = run.decay;
    own.coefficients.l2 = run.l2;
    function(own);
    begin += run.numel;
  }
}

}  // namespace tessera::kernels
