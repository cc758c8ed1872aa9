// The products of a block's adapters, of one rank: what BlockRun computes and block_graph() plans.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/matmul.h"
#include "src/nn/block_shapes.h"
#include "src/nn/lora.h"

namespace tessera::nn {

class LoraShapes {
 public:
  LoraShapes(const TransformerConfig& config, const BlockShapes& shapes);

  // An adapter's rows, as this rank has them: its columns of the layer's output, and its rows of lora_b.
  struct Adapter {
    std::int64_t column = 0, row = 0, rows = 0;
  };
  const std::vector<Adapter>& of(BlockLayer layer) const {
    return adapters_[static_cast<std::size_t>(layer)];
  }
  std::int64_t rank() const { return rank_; }
  // Columns of the value between A and B: of all adapters of the layer, one behind the other.
  std::int64_t columns(BlockLayer layer) const { return std::ssize(of(layer)) * rank_; }
  // Bytes of that value, and operations of a product with A, or with all B.
  std::int64_t bytes(BlockLayer layer) const;
  double flops_of_a(BlockLayer layer) const;
  double flops_of_b(BlockLayer layer) const;

  // value = scale · input A^T.
  kernels::MatmulShape value(BlockLayer layer) const;
  // output += value B^T, in columns of the output; of one adapter, as are those with `adapter` below. Where a
  // sum over ranks follows, `type` is fp32.
  kernels::MatmulShape output(BlockLayer layer, const Adapter& adapter, DType type) const;
  // value gradient = scale · output gradient B.
  kernels::MatmulShape value_gradient(BlockLayer layer, const Adapter& adapter) const;
  // input gradient += value gradient A.
  kernels::MatmulShape input_gradient(BlockLayer layer, DType type) const;
  // A gradient = value gradient^T input + beta · A gradient.
  kernels::MatmulShape a_gradient(BlockLayer layer, float beta) const;
  // B gradient = output gradient^T value + beta · B gradient.
  kernels::MatmulShape b_gradient(BlockLayer layer, const Adapter& adapter, float beta) const;

  // Bytes of workspace for each part that computes some of these; 0 where the layer has no adapter.
  std::int64_t value_workspace(BlockLayer layer, const Target& target) const;
  std::int64_t output_workspace(BlockLayer layer, const Target& target) const;
  std::int64_t value_gradient_workspace(BlockLayer layer, const Target& target) const;
  std::int64_t input_gradient_workspace(BlockLayer layer, const Target& target) const;
  std::int64_t parameters_workspace(BlockLayer layer, const Target& target) const;

 private:
  kernels::MatmulShape product(std::int64_t m, std::int64_t n, std::int64_t k) const;

  const BlockShapes& shapes_;
  DType type_;
  std::int64_t rank_;
  float scale_;
  std::vector<Adapter> adapters_[std::size(kBlockLayers)];
};

}  // namespace tessera::nn
