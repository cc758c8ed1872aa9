#include "kernels/optimizer.h"

#include "kernels/check.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"

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

template <class Gradient, class Parameter>
struct AdamWBody {
  AdamWCoefficients c;
  const UpdateGate* gate;
  const Gradient* gradient;
  float *master, *m, *v;
  Parameter* parameter;

  __device__ bool start() { return pass_gate(gate, c); }

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float g[kCount], p[kCount], first[kCount], second[kCount];
    load(gradient + i, g);
    load(master + i, p);
    load(m + i, first);
    load(v + i, second);
#pragma unroll
    for (int j = 0; j < kCount; ++j) adamw_element(c, g[j], p[j], first[j], second[j]);
    store(first, m + i);
    store(second, v + i);
    store(p, master + i);
    put(p, parameter, i);
  }
};

template <class Gradient, class Parameter>
struct SgdBody {
  SgdCoefficients c;
  const UpdateGate* gate;
  const Gradient* gradient;
  float *master, *momentum;
  Parameter* parameter;

  __device__ bool start() { return pass_gate(gate, c); }

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float g[kCount], p[kCount], buffer[kCount] = {};
    load(gradient + i, g);
    load(master + i, p);
    if (momentum != nullptr) load(momentum + i, buffer);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sgd_element(c, g[j], p[j], buffer[j]);
    if (momentum != nullptr) store(buffer, momentum + i);
    store(p, master + i);
    put(p, parameter, i);
  }
};

// Calls function(Gradient{}, Parameter{}).
template <class Arguments, class Function>
void with_types(const Arguments& a, Function&& function) {
  with_type(a.gradient_type, [&](auto gradient) {
    if (a.parameter == nullptr)
      function(gradient, NoParameter{});
    else
      with_type(a.parameter_type, [&](auto parameter) { function(gradient, parameter); });
  });
}

}  // namespace

void adamw_update(const ComputeContext& context, const AdamWArguments& a) {
  with_types(a, [&](auto gradient, auto parameter) {
    using Gradient = decltype(gradient);
    using Parameter = decltype(parameter);
    const AdamWBody<Gradient, Parameter> body = {.c = a.coefficients,
                                                 .gate = a.gate,
                                                 .gradient = static_cast<const Gradient*>(a.gradient),
                                                 .master = a.master,
                                                 .m = a.m,
                                                 .v = a.v,
                                                 .parameter = static_cast<Parameter*>(a.parameter)};
    run_sweep<width_of(4)>(context, "adamw_update", body, a.numel,
                           {{a.gradient, sizeof(Gradient)},
                            {a.master},
                            {a.m},
                            {a.v},
                            {a.parameter, static_cast<std::int64_t>(sizeof(Parameter))}});
  });
}

void sgd_update(const ComputeContext& context, const SgdArguments& a) {
  check_momentum(a);
  with_types(a, [&](auto gradient, auto parameter) {
    using Gradient = decltype(gradient);
    using Parameter = decltype(parameter);
    const SgdBody<Gradient, Parameter> body = {.c = a.coefficients,
                                               .gate = a.gate,
                                               .gradient = static_cast<const Gradient*>(a.gradient),
                                               .master = a.master,
                                               .momentum = a.momentum,
                                               .parameter = static_cast<Parameter*>(a.parameter)};
    run_sweep<width_of(4)>(context, "sgd_update", body, a.numel,
                           {{a.gradient, sizeof(Gradient)},
                            {a.master},
                            {a.momentum},
                            {a.parameter, static_cast<std::int64_t>(sizeof(Parameter))}});
  });
}

}  // namespace tessera::kernels::cuda
