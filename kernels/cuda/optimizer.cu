#include "kernels/optimizer.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/check.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"
#include "kernels/update_pieces.h"

namespace tessera::kernels::cuda {
namespace {

struct NoParameter {};  // an fp32 parameter that is its own master

template <int kCount>
__device__ inline void put(const float (&)[kCount], NoParameter*, std::int64_t) {}
template <int kCount, class T>
__device__ inline void put(const float (&x)[kCount], T* parameter, std::int64_t i) {
  store(x, parameter + i);
}

// Reads a gate once a thread.
template <class Coefficients>
__device__ inline bool pass_gate(const UpdateGate* gate, Coefficients& c) {
  if (gate == nullptr) return true;
  c.gradient_scale = static_cast<float>(gate->gradient_scale);
  return gate->apply != 0;
}

// Runs of one launch. Where a run begins is looked up by comparisons that are unrolled: few beside the square
// roots and divisions of a vector, and nothing of the table is in memory.
struct Runs {
  std::int64_t begin[kMostAdamWRuns];  // ascending from 0; behind the last run no element lies
  float step[kMostAdamWRuns], decay[kMostAdamWRuns], l2[kMostAdamWRuns];
};

// Moments of type Moment as they are kept, of elements from i on; `shift` is to a moment's half of the random
// bits.
template <class Moment, int kCount>
__device__ inline void round_moments(const MomentRounding& rounding, std::int64_t i, int shift,
                                     float (&moment)[kCount]) {
  if constexpr (std::is_same_v<Moment, Bf16>) {
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      moment[j] = round_moment(moment[j], rounding_word(rounding, i + j) >> shift & 0xffffu);
  }
}

template <class Gradient, class Parameter, class Moment>
struct AdamWBody {
  AdamWCoefficients c;
  int run_count;  // 0: c is of all elements
  Runs runs;
  const UpdateGate* gate;
  MomentRounding rounding;
  const Gradient* gradient;
  float* master;
  Moment *m, *v;
  Parameter* parameter;

  __device__ bool start() { return pass_gate(gate, c); }

  __device__ AdamWCoefficients coefficients_at(std::int64_t i) const {
    AdamWCoefficients own = c;
    if (run_count == 0) return own;
#pragma unroll
    for (int r = 0; r < kMostAdamWRuns; ++r) {
      if (i < runs.begin[r]) continue;
      own.step = runs.step[r];
      own.decay = runs.decay[r];
      own.l2 = runs.l2[r];
    }
    return own;
  }

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float g[kCount], p[kCount], first[kCount], second[kCount];
    load(gradient + i, g);
    load(master + i, p);
    load(m + i, first);
    load(v + i, second);
    const AdamWCoefficients own = coefficients_at(i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) adamw_moments(own, g[j], p[j], first[j], second[j]);
    round_moments<Moment>(rounding, i, 0, first);
    round_moments<Moment>(rounding, i, 16, second);
#pragma unroll
    for (int j = 0; j < kCount; ++j) p[j] = adamw_step(own, p[j], first[j], second[j]);
    store(first, m + i);
    store(second, v + i);
    store(p, master + i);
    put(p, parameter, i);
  }
};

template <class Gradient, class Parameter, class Moment>
struct SgdBody {
  SgdCoefficients c;
  const UpdateGate* gate;
  MomentRounding rounding;
  const Gradient* gradient;
  float* master;
  Moment* momentum;
  Parameter* parameter;

  __device__ bool start() { return pass_gate(gate, c); }

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float g[kCount], p[kCount], buffer[kCount] = {};
    load(gradient + i, g);
    load(master + i, p);
    if (momentum != nullptr) load(momentum + i, buffer);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      g[j] = sgd_gradient(c, g[j], p[j]);
      buffer[j] = sgd_momentum(c, g[j], buffer[j]);
    }
    if (momentum != nullptr) {
      round_moments<Moment>(rounding, i, 0, buffer);
      store(buffer, momentum + i);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) p[j] = sgd_step(c, g[j], p[j], buffer[j]);
    store(p, master + i);
    put(p, parameter, i);
  }
};

// Calls function(Gradient{}, Parameter{}, Moment{}).
template <class Arguments, class Function>
void with_types(const Arguments& a, Function&& function) {
  with_compute_type(a.moment_type, [&](auto moment) {
    with_type(a.gradient_type, [&](auto gradient) {
      if (a.parameter == nullptr)
        function(gradient, NoParameter{}, moment);
      else
        with_type(a.parameter_type, [&](auto parameter) { function(gradient, parameter, moment); });
    });
  });
}

constexpr int kUpdateWidth = width_of(4);

void update_at_once(const ComputeContext& context, const AdamWArguments& a) {
  Runs runs = {};
  std::fill_n(runs.begin, kMostAdamWRuns, std::numeric_limits<std::int64_t>::max());
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < a.runs.size(); ++r) {
    const AdamWRun& run = a.runs[r];
    runs.begin[r] = begin;
    runs.step[r] = run.step;
    runs.decay[r] = run.decay;
    runs.l2[r] = run.l2;
    begin += run.numel;
  }
  with_types(a, [&](auto gradient, auto parameter, auto moment) {
    using Gradient = decltype(gradient);
    using Parameter = decltype(parameter);
    using Moment = decltype(moment);
    const AdamWBody<Gradient, Parameter, Moment> body = {.c = a.coefficients,
                                                         .run_count = static_cast<int>(a.runs.size()),
                                                         .runs = runs,
                                                         .gate = a.gate,
                                                         .rounding = a.rounding,
                                                         .gradient = static_cast<const Gradient*>(a.gradient),
                                                         .master = a.master,
                                                         .m = static_cast<Moment*>(a.m),
                                                         .v = static_cast<Moment*>(a.v),
                                                         .parameter = static_cast<Parameter*>(a.parameter)};
    run_sweep<kUpdateWidth>(context, "adamw_update", body, a.numel,
                            {{a.gradient, sizeof(Gradient)},
                             {a.master},
                             {a.m, sizeof(Moment)},
                             {a.v, sizeof(Moment)},
                             {a.parameter, static_cast<std::int64_t>(sizeof(Parameter))}});
  });
}

}  // namespace

void adamw_update(const ComputeContext& context, const AdamWArguments& a) {
  check_runs(a);
  // No vector may lie in two runs.
  if (std::any_of(a.runs.begin(), a.runs.end(), [&](const AdamWRun& run) {
        return &run != &a.runs.back() && run.numel % kUpdateWidth != 0;
      }))
    return each_run(a, [&](const AdamWArguments& run) { update_at_once(context, run); });
  update_at_once(context, a);
}

void sgd_update(const ComputeContext& context, const SgdArguments& a) {
  check_momentum(a);
  with_types(a, [&](auto gradient, auto parameter, auto moment) {
    using Gradient = decltype(gradient);
    using Parameter = decltype(parameter);
    using Moment = decltype(moment);
    const SgdBody<Gradient, Parameter, Moment> body = {.c = a.coefficients,
                                                       .gate = a.gate,
                                                       .rounding = a.rounding,
                                                       .gradient = static_cast<const Gradient*>(a.gradient),
                                                       .master = a.master,
                                                       .momentum = static_cast<Moment*>(a.momentum),
                                                       .parameter = static_cast<Parameter*>(a.parameter)};
    run_sweep<width_of(4)>(context, "sgd_update", body, a.numel,
                           {{a.gradient, sizeof(Gradient)},
                            {a.master},
                            {a.momentum, sizeof(Moment)},
                            {a.parameter, static_cast<std::int64_t>(sizeof(Parameter))}});
  });
}

}  // namespace tessera::kernels::cuda
