// One fused pass over a contiguous run of a shard: unscale and clip the gradient, update master and moments,
// cast to the parameter's type. The formulas are in adamw_math.h, sgd_math.h and moment_math.h. The same bits
// for any thread count and instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/adamw_math.h"
#include "kernels/context.h"
#include "kernels/gate_math.h"
#include "kernels/moment_math.h"
#include "kernels/sgd_math.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// Consecutive elements, and what differs between parameter groups of their coefficients.
struct AdamWRun {
  std::int64_t numel = 0;
  float step = 0.0f;
  float decay = 1.0f;
  float l2 = 0.0f;
};

constexpr int kMostAdamWRuns = 16;  // of one call

struct AdamWArguments {
  std::int64_t numel = 0;
  DType gradient_type = DType::fp32;
  const void* gradient = nullptr;  // the accumulator: a sum, not yet unscaled
  float* master = nullptr;
  void* m = nullptr;
  void* v = nullptr;
  DType moment_type = DType::fp32;  // or bf16, see moment_math.h
  MomentRounding rounding = {};
  DType parameter_type = DType::bf16;
  void* parameter = nullptr;  // optional: null where an fp32 parameter is its own master
  AdamWCoefficients coefficients;
  // Optional: at most kMostAdamWRuns, all of the elements, with coefficients of their own.
  std::span<const AdamWRun> runs = {};
  const UpdateGate* gate =
      nullptr;  // optional, in memory of the device: replaces coefficients.gradient_scale
};

// AdamW (Loshchilov and Hutter 2019) or Adam with L2 (Kingma and Ba 2015), by the coefficients.
void adamw_update(const ComputeContext& context, const AdamWArguments& arguments);

struct SgdArguments {
  std::int64_t numel = 0;
  DType gradient_type = DType::fp32;
  const void* gradient = nullptr;
  float* master = nullptr;
  void* momentum = nullptr;  // optional: null where coefficients.momentum is 0
  DType moment_type = DType::fp32;
  MomentRounding rounding = {};
  DType parameter_type = DType::bf16;
  void* parameter = nullptr;  // optional, as above
  SgdCoefficients coefficients;
  const UpdateGate* gate = nullptr;  // optional, as above
};

// SGD with (Nesterov) momentum, no dampening; the first step starts from momentum 0.
void sgd_update(const ComputeContext& context, const SgdArguments& arguments);

}  // namespace tessera::kernels
