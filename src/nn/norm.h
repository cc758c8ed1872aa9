// The normalisation before a transformer's layers, of either kind: its parameters, forward and backward.
// LayerNorm has a gain followed by a bias. RmsNorm has only a gain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "tessera/module.h"

namespace tessera::nn {

enum class NormKind : std::uint8_t { layer, rms };

struct Norm {
  NormKind kind = NormKind::layer;
  float epsilon = 1e-5f;
};

// The number of parameters of the norm.
constexpr std::size_t parameters_of(const Norm& norm) { return norm.kind == NormKind::layer ? 2 : 1; }

// add_norm() adds "<prefix>.gain" and, for LayerNorm, "<prefix>.bias", each [channels]. Of their gradients
// each tensor rank makes a part, if it has some of the rows, or the whole. add_norm_initials() adds their
// initial values, 1 and 0.
void add_norm(const Norm& norm, const std::string& prefix, std::int64_t channels, DType type,
              GradientOver gradient, std::vector<ParameterSpec>& specs);
void add_norm_initials(const Norm& norm, std::vector<Initial>& initials);

// "layer norm 1e-05", for Module::numerics().
std::string words_of(const Norm& norm);

// The norm in one pass. In the functions below, its parameters start at index `gain` of the context's
// parameters.
struct NormPass {
  Norm norm;
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  DType type = DType::fp32;
  float* mean = nullptr;  // [rows], written by forward and read by backward, like rstd; unused by RmsNorm
  float* rstd = nullptr;
};

struct NormForward {
  const void* input = nullptr;
  const void* residual = nullptr;  // optional, together with `sum`: normalises input + residual, and writes
                                   // that to `sum`
  void* sum = nullptr;
  void* output = nullptr;
};
void norm_forward(const ModuleContext& context, const kernels::ComputeContext& compute, const NormPass& pass,
                  std::size_t gain, const NormForward& arguments);

// Bytes of scratch that norm_backward() needs.
std::int64_t norm_workspace_bytes(const NormPass& pass, const Target& target);

struct NormBackward {
  const void* input = nullptr;  // what forward normalised
  const void* output_gradient = nullptr;
  const void* residual_gradient = nullptr;  // optional: the gradient that bypasses the norm; added
  // May be either of the two gradients above. Null: only the gradients of the parameters.
  void* input_gradient = nullptr;
};
// Also writes the gradients of the parameters, unless they are frozen.
void norm_backward(const ModuleContext& context, const kernels::ComputeContext& compute, const NormPass& pass,
                   std::size_t gain, const NormBackward& arguments);

}  // namespace tessera::nn
