// What several modules share: checks, and the gradients of a layer's parameters from a module's context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/kernels.h"
#include "tessera/module.h"

namespace tessera::nn {

// The bounds of what a dim may be, so that bytes can be counted in 64 bits.
inline constexpr std::int64_t kMostPerDim = std::int64_t{1} << 31;

// Optimizer groups, as Model::groups names them: matrices decay, biases and norms do not.
inline constexpr int kDecay = 0;
inline constexpr int kNoDecay = 1;

// Throws UsageError naming `field` unless 1 ≤ value < 2^31.
void check_dim(std::string_view model, std::string_view field, std::int64_t value);

// Throws UnsupportedError for fp16, which the kernels do not compute in.
void check_type(std::string_view model, DType type);

// Of a share given as `field` of a model: UsageError naming it unless 0 <= share < 1.
std::uint32_t dropout_threshold(std::string_view model, std::string_view field, double share);

// What of a training step's batch is dropped with this threshold, nothing in others. `matrix`: the same in
// every pass, and another than what else the unit drops has.
kernels::Dropout dropout_of(const ModuleContext& context, std::uint32_t threshold, std::int64_t matrix);

// Where and by how many threads, and what of the workspace lies behind the module's own regions, for a
// kernel's scratch.
kernels::ComputeContext compute_context(const ModuleContext& context, std::int64_t own_bytes);

// Gradients of a linear layer whose weight is parameter `weight`, and whose bias, where it has one, follows
// it; frozen ones are passed over.
struct LinearGradients {
  kernels::LinearShape shape;
  const void* input = nullptr;
  const void* output_gradient = nullptr;
  std::size_t weight = 0;
  bool bias = true;
};
void linear_parameter_gradients(const ModuleContext& context, const kernels::ComputeContext& compute,
                                const LinearGradients& arguments);

}  // namespace tessera::nn
