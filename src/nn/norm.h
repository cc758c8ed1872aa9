// The normalisation in front of a transformer's layers, either kind: its parameters, and one forward and
// backward over them. LayerNorm has a gain and a bias that follows it; RmsNorm a gain only.
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

// How many parameters the norm takes of its module's.
constexpr std::size_t parameters_of(const Norm& norm) { return norm.kind == NormKind::layer ? 2 : 1; }

// "<prefix>.gain" and, where there is one, "<prefix>.bias", each [channels]; 1 and 0 at the start.
void add_norm(const Norm& norm, const std::string& prefix, std::int64_t channels, DType type,
              std::vector<ParameterSpec>& specs);
void add_norm_initials(const Norm& norm, std::vector<Initial>& initials);

// "layer norm 1e-05", for Module::numerics().
std::string words_of(const Norm& norm);

// One norm of one pass: whose parameters start at index `gain` of the context's.
struct NormPass {
  Norm norm;
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  DType type = DType::fp32;
  float* mean = nullptr;  // [rows], written by forward, read by backward; mean unused by RmsNorm
  float* rstd = nullptr;
};

struct NormForward {
  const void* input = nullptr;
  const void* residual = nullptr;  // optional, with `sum`: normalises input + residual, which `sum` receives
  void* sum = nullptr;
  void* output = nullptr;
};
void norm_forward(const ModuleContext& context, const kernels::ComputeContext& compute, const NormPass& pass,
                  std::size_t gain, const NormForward& arguments);

// Scratch of norm_backward.
std::int64_t norm_workspace_bytes(const NormPass& pass, const Target& target);

struct NormBackward {
  const void* input = nullptr;  // what forward normalised
  const void* output_gradient = nullptr;
  const void* residual_gradient = nullptr;  // optional: came past the norm, and is added
  void* input_gradient = nullptr;           // may be either of the two
};
// Also the parameters' gradients, unless they are frozen.
void norm_backward(const ModuleContext& context, const kernels::ComputeContext& compute, const NormPass& pass,
                   std::size_t gain, const NormBackward& arguments);

}  // namespace tessera::nn
