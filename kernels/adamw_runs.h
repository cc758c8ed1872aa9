// The runs of an AdamW update, one at a time.
#pragma once

#include "kernels/check.h"
#include "kernels/optimizer.h"

namespace tessera::kernels {

// The run that begins at element `begin`, as arguments of its own.
inline AdamWArguments arguments_of(const AdamWArguments& all, const AdamWRun& run, std::int64_t begin) {
  AdamWArguments own = all;
  own.numel = run.numel;
  own.gradient = element(all.gradient, all.gradient_type, begin);
  own.master = all.master + begin;
  own.m = element(all.m, all.moment_type, begin);
  own.v = element(all.v, all.moment_type, begin);
  own.rounding.first += begin;
  if (all.parameter != nullptr) own.parameter = element(all.parameter, all.parameter_type, begin);
  own.coefficients.step = run.step;
  own.coefficients.decay = run.decay;
  own.coefficients.l2 = run.l2;
  own.runs = {};
  return own;
}

// Calls function(arguments) for every run, and for all elements where there are none.
template <class Function>
void each_run(const AdamWArguments& all, Function&& function) {
  if (all.runs.empty()) return function(all);
  std::int64_t begin = 0;
  for (const AdamWRun& run : all.runs) {
    function(arguments_of(all, run, begin));
    begin += run.numel;
  }
}

}  // namespace tessera::kernels
