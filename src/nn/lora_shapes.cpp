#include "src/nn/lora_shapes.h"

#include <algorithm>

namespace tessera::nn {

LoraShapes::LoraShapes(const TransformerConfig& config, const BlockShapes& shapes)
    : shapes_(shapes),
      type_(config.type),
      rank_(config.lora.rank),
      scale_(static_cast<float>(config.lora.scale())) {
  if (rank_ == 0) return;
  for (const BlockLayer layer : kBlockLayers) {
    // Each segment is cut by itself, so that what a rank has of those before is a part of their rows.
    const std::int64_t ranks = splits_outputs(layer) ? shapes.tensor_ranks : 1;
    std::int64_t row = 0;
    for (const LoraSegment& segment : lora_segments(config, layer)) {
      const std::int64_t rows = segment.rows / ranks;
      adapters_[static_cast<std::size_t>(layer)].push_back({segment.first / ranks, row, rows});
      row += rows;
    }
  }
}

std::int64_t LoraShapes::bytes(BlockLayer layer) const {
  return shapes_.rows * columns(layer) * bytes_of(type_);
}

double LoraShapes::flops_of_a(BlockLayer layer) const {
  return 2.0 * static_cast<double>(shapes_.rows) * static_cast<double>(columns(layer)) *
         static_cast<double>(shapes_.of(layer).in);
}

double LoraShapes::flops_of_b(BlockLayer layer) const {
  double rows = 0;
  for (const Adapter& adapter : of(layer)) rows += static_cast<double>(adapter.rows);
  return 2.0 * static_cast<double>(shapes_.rows) * static_cast<double>(rank_) * rows;
}

kernels::MatmulShape LoraShapes::product(std::int64_t m, std::int64_t n, std::int64_t k) const {
  return {.m = m, .n = n, .k = k, .input_type = type_, .output_type = type_};
}

kernels::MatmulShape LoraShapes::value(BlockLayer layer) const {
  kernels::MatmulShape shape = product(shapes_.rows, columns(layer), shapes_.of(layer).in);
  shape.transpose_b = true;
  shape.alpha = scale_;
  return shape;
}

kernels::MatmulShape LoraShapes::output(BlockLayer layer, const Adapter& adapter, DType type) const {
  kernels::MatmulShape shape = product(shapes_.rows, adapter.rows, rank_);
  shape.transpose_b = true;
  shape.lda = columns(layer);
  shape.ldc = shapes_.of(layer).out;
  shape.output_type = type;
  shape.beta = 1.0f;
  return shape;
}

kernels::MatmulShape LoraShapes::value_gradient(BlockLayer layer, const Adapter& adapter) const {
  kernels::MatmulShape shape = product(shapes_.rows, rank_, adapter.rows);
  shape.lda = shapes_.of(layer).out;
  shape.ldc = columns(layer);
  shape.alpha = scale_;
  return shape;
}

kernels::MatmulShape LoraShapes::input_gradient(BlockLayer layer, DType type) const {
  kernels::MatmulShape shape = product(shapes_.rows, shapes_.of(layer).in, columns(layer));
  shape.output_type = type;
  shape.beta = 1.0f;
  return shape;
}

kernels::MatmulShape LoraShapes::a_gradient(BlockLayer layer, float beta) const {
  kernels::MatmulShape shape = product(columns(layer), shapes_.of(layer).in, shapes_.rows);
  shape.transpose_a = true;
  shape.beta = beta;
  return shape;
}

kernels::MatmulShape LoraShapes::b_gradient(BlockLayer layer, const Adapter& adapter, float beta) const {
  kernels::MatmulShape shape = product(adapter.rows, rank_, shapes_.rows);
  shape.transpose_a = true;
  shape.lda = shapes_.of(layer).out;
  shape.ldb = columns(layer);
  shape.beta = beta;
  return shape;
}

std::int64_t LoraShapes::value_workspace(BlockLayer layer, const Target& target) const {
  return of(layer).empty() ? 0 : kernels::matmul_workspace_bytes(value(layer), target);
}

namespace {

// What the layer's sum over ranks has of a product: it stays fp32.
DType type_of_sum(DType type, const Target& target, bool splits) {
  return target.tensor > 1 && splits ? DType::fp32 : type;
}

}  // namespace

std::int64_t LoraShapes::output_workspace(BlockLayer layer, const Target& target) const {
  const DType type = type_of_sum(type_, target, !splits_outputs(layer));
  std::int64_t bytes = 0;
  for (const Adapter& adapter : of(layer))
    bytes = std::max(bytes, kernels::matmul_workspace_bytes(output(layer, adapter, type), target));
  return bytes;
}

std::int64_t LoraShapes::value_gradient_workspace(BlockLayer layer, const Target& target) const {
  std::int64_t bytes = 0;
  for (const Adapter& adapter : of(layer))
    bytes = std::max(bytes, kernels::matmul_workspace_bytes(value_gradient(layer, adapter), target));
  return bytes;
}

std::int64_t LoraShapes::input_gradient_workspace(BlockLayer layer, const Target& target) const {
  if (of(layer).empty()) return 0;
  const DType type = type_of_sum(type_, target, splits_outputs(layer));
  return kernels::matmul_workspace_bytes(input_gradient(layer, type), target);
}

std::int64_t LoraShapes::parameters_workspace(BlockLayer layer, const Target& target) const {
  std::int64_t bytes = 0;
  if (of(layer).empty()) return bytes;
  for (const float beta : {0.0f, 1.0f}) {
    bytes = std::max(bytes, kernels::matmul_workspace_bytes(a_gradient(layer, beta), target));
    for (const Adapter& adapter : of(layer))
      bytes = std::max(bytes, kernels::matmul_workspace_bytes(b_gradient(layer, adapter, beta), target));
  }
  return bytes;
}

}  // namespace tessera::nn
