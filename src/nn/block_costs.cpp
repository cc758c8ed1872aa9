#include "src/nn/block_costs.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "src/nn/support.h"

namespace tessera::nn {

double pair_flops(const BlockShapes& shapes) {
  return 2.0 * 2.0 * static_cast<double>(shapes.attention.channels);
}

namespace {

BlockLayer layer_of(BlockWork work) {
  switch (work) {
    case BlockWork::qkv:
      return BlockLayer::qkv;
    case BlockWork::projection:
      return BlockLayer::projection;
    case BlockWork::up:
      return BlockLayer::up;
    default:
      return BlockLayer::down;
  }
}

}  // namespace

std::int64_t BlockCosts::workspace_bytes(const BlockPart& part) const {
  switch (part.work) {
    case BlockWork::memory:
      return 0;
    case BlockWork::norm:
      return is_of_backward(part.pass) ? norm_workspace_bytes(norm_of(config_, shapes_), target_) : 0;
    case BlockWork::activation:
      return part.gradients == nullptr
                 ? 0
                 : kernels::gelu_backward_bias_workspace_bytes(shapes_.rows, shapes_.hidden, target_);
    case BlockWork::attention:
      return attention_bytes(part.pass);
    case BlockWork::qkv:
      return std::max(layer_bytes(part), rotates(part) ? rotary_bytes() : 0);
    case BlockWork::heads:
      return rotates(part) ? rotary_bytes() : shapes_.part_bytes;
    case BlockWork::adapter:
      return adapter_bytes(part);
    default:
      return layer_bytes(part);
  }
}

double BlockCosts::flops(const BlockPart& part) const {
  switch (part.work) {
    case BlockWork::memory:
    case BlockWork::norm:
    case BlockWork::heads:
    case BlockWork::activation:
      return 0;
    case BlockWork::attention: {
      if (shapes_.cached.capacity > 0)  // at most, behind a full cache
        return static_cast<double>(shapes_.rows) * static_cast<double>(shapes_.cached.capacity) *
               pair_flops(shapes_);
      // For the pairs of tokens that the causal mask leaves.
      const double forward = static_cast<double>(shapes_.rows) *
                             static_cast<double>(shapes_.attention.sequence + 1) / 2 * pair_flops(shapes_);
      return part.pass == Pass::backward ? 2 * forward : forward;
    }
    case BlockWork::adapter:
      return adapter_flops(part);
    default:
      return layer_flops(part);
  }
}

// With what an adapter adds: B of its value to the output, or A of its gradient to that of the input.
double BlockCosts::layer_flops(const BlockPart& part) const {
  const BlockLayer layer = layer_of(part.work);
  const kernels::LinearShape& shape = shapes_.of(layer);
  const double own =
      2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.in) * static_cast<double>(shape.out);
  if (part.gradients != nullptr) return own;
  return own + (part.pass == Pass::forward ? adapters_.flops_of_b(layer) : adapters_.flops_of_a(layer));
}

std::int64_t BlockCosts::layer_bytes(const BlockPart& part) const {
  const BlockLayer layer = layer_of(part.work);
  const std::int64_t added = part.pass == Pass::forward ? adapters_.output_workspace(layer, target_)
                                                        : adapters_.input_gradient_workspace(layer, target_);
  return std::max(linear_bytes(shapes_.of(layer)), added);
}

std::int64_t BlockCosts::adapter_bytes(const BlockPart& part) const {
  if (part.pass == Pass::forward) return adapters_.value_workspace(part.adapted, target_);
  return part.writes.empty() ? adapters_.parameters_workspace(part.adapted, target_)
                             : adapters_.value_gradient_workspace(part.adapted, target_);
}

double BlockCosts::adapter_flops(const BlockPart& part) const {
  const double a = adapters_.flops_of_a(part.adapted), b = adapters_.flops_of_b(part.adapted);
  if (part.pass == Pass::forward) return a;
  return part.writes.empty() ? a + b : b;
}

std::int64_t BlockCosts::linear_bytes(const kernels::LinearShape& shape) const {
  const std::int64_t bytes = kernels::linear_workspace_bytes(shape, target_);
  if (target_.tensor == 1) return bytes;
  return std::max(bytes, kernels::linear_partial_workspace_bytes(shape, target_));
}

bool BlockCosts::rotates(const BlockPart& part) const {
  return part.pass == Pass::forward &&
         part.work == (shapes_.split == BlockSplit::head_parts ? BlockWork::heads : BlockWork::qkv);
}

std::int64_t BlockCosts::rotary_bytes() const {
  return config_.rotary.empty() ? 0 : kernels::rotary_workspace_bytes(shapes_.rotary);
}

std::int64_t BlockCosts::attention_bytes(Pass pass) const {
  if (shapes_.cached.capacity > 0) return kernels::cached_attention_workspace_bytes(shapes_.cached, target_);
  if (pass == Pass::backward)
    return std::max(kernels::attention_backward_workspace_bytes(shapes_.attention, target_), rotary_bytes());
  kernels::AttentionShape evaluated = shapes_.attention;  // without dropout, which may choose another kernel
  evaluated.dropout = {};
  return std::max(kernels::attention_forward_workspace_bytes(shapes_.attention, target_),
                  kernels::attention_forward_workspace_bytes(evaluated, target_));
}

}  // namespace tessera::nn
