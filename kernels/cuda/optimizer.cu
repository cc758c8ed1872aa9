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

// Runs of one launch. Where a run begins is looked up by comparisons that are unrolled: few beside the square
// roots and divisions of a vector, and nothing of the table is in memory.
template <class Coefficients>
struct Runs {
  std::int64_t begin[kMostCoefficientRuns];  // ascending from 0; behind the last run no element lies
  typename Coefficients::Group group[kMostCoefficientRuns];
  int number[kMostCoefficientRuns];  // of the parameter group, in a step's block
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

// A rule's body with what it works on.
template <class Coefficients, int kMoments, class Gradient, class Parameter, class Moment>
struct UpdateBody {
  Coefficients c;
  int run_count;  // 0: c is of all elements
  Runs<Coefficients> runs;
  float gradient_scale;
  const UpdateGate* gate;
  const StepBlock* block;
  int group;           // all elements' in the block
  std::uint64_t flat;  // for the block's rounding
  MomentRounding rounding;
  const Gradient* gradient;
  float* master;
  Moment* moments[kMostMoments];
  Parameter* parameter;

  __device__ const StepCoefficients<Coefficients>& of_step() const {
    return *reinterpret_cast<const StepCoefficients<Coefficients>*>(block->update.numbers);
  }

  // Reads gate and block once a thread.
  __device__ bool start() {
    if (block != nullptr) {
      c = of_step().all;
      c.group = of_step().groups[group];
      if constexpr (std::is_same_v<Moment, Bf16>) rounding.key = rounding_key(flat, block->update.step);
    }
    if (gate == nullptr) return true;
    gradient_scale = static_cast<float>(gate->gradient_scale);
    return gate->apply != 0;
  }

  __device__ Coefficients coefficients_at(std::int64_t i) const {
    Coefficients own = c;
    if (run_count == 0) return own;
    if (block != nullptr) {
      int number = runs.number[0];
#pragma unroll
      for (int r = 1; r < kMostCoefficientRuns; ++r)
        if (i >= runs.begin[r]) number = runs.number[r];
      own.group = of_step().groups[number];
      return own;
    }
#pragma unroll
    for (int r = 0; r < kMostCoefficientRuns; ++r)
      if (i >= runs.begin[r]) own.group = runs.group[r];
    return own;
  }

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float g[kCount], p[kCount], kept[kMostMoments][kCount];
    load(gradient + i, g);
    load(master + i, p);
#pragma unroll
    for (int k = 0; k < kMoments; ++k) load(moments[k] + i, kept[k]);
    const rules::scalar::Body<Coefficients, kMoments> body(coefficients_at(i));
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float own[kMostMoments];
#pragma unroll
      for (int k = 0; k < kMoments; ++k) own[k] = kept[k][j];
      g[j] = body.accumulate(g[j] * gradient_scale, p[j], own);
#pragma unroll
      for (int k = 0; k < kMoments; ++k) kept[k][j] = own[k];
    }
#pragma unroll
    for (int k = 0; k < kMoments; ++k) {
      round_moments<Moment>(rounding, i, 16 * k, kept[k]);
      store(kept[k], moments[k] + i);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float own[kMostMoments];
#pragma unroll
      for (int k = 0; k < kMoments; ++k) own[k] = kept[k][j];
      p[j] = body.step(body.prepare(g[j], own), p[j], own);
    }
    store(p, master + i);
    put(p, parameter, i);
  }
};

// Calls function(Gradient{}, Parameter{}, Moment{}).
template <class Function>
void with_types(const OptimizerArguments& a, Function&& function) {
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

template <class Coefficients>
Runs<Coefficients> runs_of(const OptimizerArguments& a) {
  Runs<Coefficients> runs = {};
  std::fill_n(runs.begin, kMostCoefficientRuns, std::numeric_limits<std::int64_t>::max());
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < a.runs.size(); ++r) {
    runs.begin[r] = begin;
    runs.number[r] = a.runs[r].group;
    std::visit(
        [&](const auto& own) {
          if constexpr (std::is_same_v<std::decay_t<decltype(own)>, Coefficients>) runs.group[r] = own.group;
        },
        a.runs[r].coefficients);
    begin += a.runs[r].numel;
  }
  return runs;
}

template <int kMoments, class Coefficients>
void launch(const ComputeContext& context, const OptimizerArguments& a, const Coefficients& c) {
  with_types(a, [&](auto gradient, auto parameter, auto moment) {
    using Gradient = decltype(gradient);
    using Parameter = decltype(parameter);
    using Moment = decltype(moment);
    UpdateBody<Coefficients, kMoments, Gradient, Parameter, Moment> body = {
        .c = c,
        .run_count = static_cast<int>(a.runs.size()),
        .runs = runs_of<Coefficients>(a),
        .gradient_scale = a.gradient_scale,
        .gate = a.gate,
        .block = a.block,
        .group = a.group,
        .flat = a.flat,
        .rounding = a.rounding,
        .gradient = static_cast<const Gradient*>(a.gradient),
        .master = a.master,
        .moments = {},
        .parameter = static_cast<Parameter*>(a.parameter)};
    for (int k = 0; k < kMoments; ++k) body.moments[k] = static_cast<Moment*>(a.moments[k]);
    run_sweep<kUpdateWidth>(context, Coefficients::kOp, body, a.numel,
                            {{a.gradient, sizeof(Gradient)},
                             {a.master},
                             {body.moments[0], sizeof(Moment)},
                             {body.moments[1], sizeof(Moment)},
                             {a.parameter, static_cast<std::int64_t>(sizeof(Parameter))}});
  });
}

void update_at_once(const ComputeContext& context, const OptimizerArguments& a) {
  std::visit(
      [&](const auto& c) {
        using Coefficients = std::decay_t<decltype(c)>;
        with_moments<Coefficients>(a.moment_count, [&](auto count) { launch<count()>(context, a, c); });
      },
      a.coefficients);
}

}  // namespace

void optimizer_update(const ComputeContext& context, const OptimizerArguments& a) {
  // No vector may lie in two runs.
  if (std::any_of(a.runs.begin(), a.runs.end(), [&](const CoefficientRun& run) {
        return &run != &a.runs.back() && run.numel % kUpdateWidth != 0;
      }))
    return each_run(a, [&](const OptimizerArguments& run) { update_at_once(context, run); });
  update_at_once(context, a);
}

}  // namespace tessera::kernels::cuda
