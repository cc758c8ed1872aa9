// The compute of a transformer block: its values, and what each of its parts does with them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "src/nn/block_shapes.h"
#include "tessera/module.h"

namespace tessera::nn {

// Where each layer's parameters begin among the module's: a gain or weight, then the bias where there is one.
struct BlockIndices {
  std::size_t norm1, qkv, projection, norm2, up, down, count;

  explicit BlockIndices(const TransformerConfig& config) {
    const std::size_t norm = parameters_of(config.norm);
    const std::size_t linear = config.biases ? 2 : 1;
    norm1 = 0;
    qkv = norm1 + norm;
    projection = qkv + linear;
    norm2 = projection + linear;
    up = norm2 + norm;
    down = up + linear;
    count = down + linear;
  }
};

// [tokens, columns] in the model's type, unless said otherwise.
enum BlockValue : ValueId {
  kNorm1,            // [tokens, channels]: output of the first norm
  kMean1,            // [tokens] fp32; nothing for RMSNorm
  kRstd1,            // [tokens] fp32
  kQkv,              // [tokens, qkv channels], rotated
  kAttention,        // [tokens, channels]
  kLogSumExp,        // [sequences, heads, length] fp32
  kAttentionBranch,  // [tokens, channels]: what attention adds to the residual stream
  kMiddle,           // [tokens, channels]: input + kAttentionBranch
  kNorm2,            // as of the first norm
  kMean2,
  kRstd2,
  kPreactivation,  // [tokens, up channels]
  kHidden,         // [tokens, hidden]: output of the activation function
  // Backward's. A branch's gradient is that of the stream, and takes no memory, where nothing is dropped.
  kMlpBranchGradient,
  kHiddenGradient,
  kPreactivationGradient,
  kNorm2Gradient,
  kMiddleGradient,
  kAttentionBranchGradient,
  kAttentionGradient,
  kQkvGradient,
  kNorm1Gradient,
};

// The gradients of what the two branches end with, before they are added to the residual stream.
inline ValueId mlp_branch_gradient(const TransformerConfig& config) {
  return config.dropout > 0 ? ValueId{kMlpBranchGradient} : SharedValue::output_gradient;
}
inline ValueId attention_branch_gradient(const TransformerConfig& config) {
  return config.dropout > 0 ? kAttentionBranchGradient : kMiddleGradient;
}

// Runs one part on one microbatch. The values that a part reads and writes are in the table of parts
// (transformer_block.cpp).
class BlockRun {
 public:
  // All arguments outlive it.
  BlockRun(const TransformerConfig& config, const ModuleContext& context, const BlockShapes& shapes);

  // Forward, and what a recompute runs in place of norm2().
  void norm1() const;
  void qkv() const;
  void attention() const;
  void projection() const;
  void norm2() const;
  void norm2_again() const;
  void up() const;
  void activation() const;
  void down() const;

  // Backward: gradients of parameters, and of what the layer of that name reads.
  void drop_mlp_gradient() const;
  void down_parameters() const;
  void down_gradient() const;
  void activation_gradient() const;
  void up_parameters() const;
  void up_gradient() const;
  void norm2_gradient() const;
  void drop_attention_gradient() const;
  void projection_parameters() const;
  void projection_gradient() const;
  void attention_gradient() const;
  void qkv_parameters() const;
  void qkv_gradient() const;
  void norm1_gradient() const;

 private:
  // What ends in the residual stream; numbers its dropout, behind the attention's heads.
  enum Branch : std::uint8_t { kOfAttention, kOfMlp };

  void* value(ValueId id) const { return context_.value(id); }

  NormPass norm_pass(ValueId mean, ValueId rstd) const;

  // output = dropout(tensor), [tokens, channels].
  void drop(Branch branch, const void* tensor, void* output) const;

  kernels::SwigluShape swiglu() const;

  void linear(const kernels::LinearShape& shape, const void* input, std::size_t weight, void* output) const;

  void parameter_gradients(const kernels::LinearShape& shape, const void* input, const void* output_gradient,
                           std::size_t weight) const;

  void input_gradient(const kernels::LinearShape& shape, const void* output_gradient, std::size_t weight,
                      void* gradient) const;

  const TransformerConfig& config_;
  const ModuleContext& context_;
  const BlockShapes& shapes_;
  kernels::AttentionShape attention_shape_ = shapes_.attention;
  BlockIndices indices_;
  kernels::ComputeContext compute_;
};

}  // namespace tessera::nn
