// One fused pass over a contiguous run of a shard: unscale and clip the gradient, update master and moments,
// cast to the parameter's type. The optimizer's rule (optim/rules.h) says what is computed, and moment_math.h
// how moments in bf16 are rounded. The same bits for any thread count and instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "kernels/gate_math.h"
#include "kernels/moment_math.h"
#include "kernels/step_block.h"
#include "optim/rules.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

constexpr int kMostMoments = 2;  // over all rules; one word of random bits rounds this many

// Consecutive elements and their coefficients. The runs of a call differ only in the coefficients' `group`.
struct CoefficientRun {
  std::int64_t numel = 0;
  rules::AnyCoefficients coefficients = {};
  int group = 0;  // the parameter group, for OptimizerArguments::block
};

constexpr int kMostCoefficientRuns = 16;  // in one call

struct OptimizerArguments {
  std::int64_t numel = 0;
  DType gradient_type = DType::fp32;
  const void* gradient = nullptr;  // the accumulator: a sum, not yet unscaled
  float* master = nullptr;
  int moment_count = 0;  // as the rule's moments() says
  void* moments[kMostMoments] = {};
  DType moment_type = DType::fp32;  // or bf16, see moment_math.h
  MomentRounding rounding = {};
  DType parameter_type = DType::bf16;
  void* parameter = nullptr;                 // optional: null where an fp32 parameter is its own master
  rules::AnyCoefficients coefficients = {};  // their type also selects the rule
  // Optional: at most kMostCoefficientRuns runs with their own coefficients, which together cover all
  // elements.
  std::span<const CoefficientRun> runs = {};
  float gradient_scale = 1.0f;  // unscale * clip / weight
  // Optional, in memory of the device: replaces gradient_scale, and decides whether anything is updated.
  const UpdateGate* gate = nullptr;
  // Optional, on CUDA, in memory of the device: its `update` replaces all coefficients by those of the
  // groups, and rounding.key by rounding_key(flat, step). So one captured call does each step's update.
  const StepBlock* block = nullptr;
  int group = 0;           // of all elements, unless there are runs
  std::uint64_t flat = 0;  // what rounding.key is made of besides the step
};

void optimizer_update(const ComputeContext& context, const OptimizerArguments& arguments);

}  // namespace tessera::kernels
