// What the parts of a block need and cost.
#pragma once

#include <cstdint>

#include "src/nn/block_graph.h"
#include "src/nn/lora_shapes.h"

namespace tessera::nn {

class BlockCosts {
 public:
  // All arguments outlive it.
  BlockCosts(const TransformerConfig& config, const BlockShapes& shapes, const Target& target)
      : config_(config), shapes_(shapes), target_(target), adapters_(config, shapes) {}

  std::int64_t workspace_bytes(const BlockPart& part) const;
  // Operations of its matrix products.
  double flops(const BlockPart& part) const;

 private:
  std::int64_t layer_bytes(const BlockPart& part) const;
  std::int64_t adapter_bytes(const BlockPart& part) const;
  std::int64_t linear_bytes(const kernels::LinearShape& shape) const;
  std::int64_t rotary_bytes() const;
  std::int64_t attention_bytes(Pass pass) const;
  // Whether a part of that work ends with the rotation.
  bool rotates(const BlockPart& part) const;
  double layer_flops(const BlockPart& part) const;
  double adapter_flops(const BlockPart& part) const;

  const TransformerConfig& config_;
  const BlockShapes& shapes_;
  const Target& target_;
  const LoraShapes adapters_;
};

}  // namespace tessera::nn
