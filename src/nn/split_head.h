// The head of a language model on several tensor ranks: the final norm, and the loss over a linear layer
// whose outputs, the vocabulary, each rank has some of. No rank ever holds all logits of a row: chunks of
// rows exchange three numbers a row, and what each rank makes of the norm's gradient is summed.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "src/nn/norm.h"
#include "src/nn/softmax_loss.h"
#include "src/nn/transformer.h"
#include "tessera/module.h"

namespace tessera::nn {

class SplitHead {
 public:
  // Throws UsageError where the ranks cannot have equal parts. The configuration must outlive it.
  SplitHead(const TransformerConfig& config, const BatchShape& shape, const Target& target);

  UnitGraph graph() const;
  void run(int part, const ModuleContext& context) const;
  // Rows of a chunk.
  std::int64_t chunk_rows() const { return chunk_rows_; }
  // See sums_in_fp32().
  bool sums() const { return sums_in_fp32(config_.type, chunks()); }

 private:
  // What a part does; those of a chunk are there for each.
  enum class Step : std::uint8_t {
    norm,
    logits,     // of a chunk, and their statistics
    losses,     // of a chunk
    total,      // of all losses, and the logits of the row that is asked for
    gradients,  // losses of a chunk, and what the layer's backward makes of them
    norm_sum,
    norm_gradient,
    weight_gradient  // of the sum over chunks, where there is one
  };
  struct Part {
    Step step;
    Pass pass;
    int chunk = 0;
  };
  std::vector<Part> parts() const;
  IdVector<ValueSpec> values() const;
  PartSpec spec_of(const Part& part) const;

  // The norm's output of all tokens, and the gradient of that which its backward reads.
  ValueId norm_of_all() const;
  ValueId norm_gradient() const;
  // Numbers of a chunk's two values: this rank's statistics, and those of all.
  static ValueId statistics(int chunk);
  static ValueId all_statistics(int chunk);

  int chunks() const { return static_cast<int>((tokens_ + chunk_rows_ - 1) / chunk_rows_); }
  std::int64_t rows_of(int chunk) const;
  kernels::SoftmaxShape softmax(int chunk, int tensor_rank) const;
  kernels::CrossEntropyShape row_shape(int tensor_rank) const;
  NormPass norm_of(const ModuleContext* context) const;
  std::size_t weight() const { return parameters_of(config_.norm); }

  static float* losses_of(const ModuleContext& context);
  void logits(int chunk, const ModuleContext& context) const;
  void losses(int chunk, const ModuleContext& context) const;
  void total(const ModuleContext& context) const;
  void gradients(int chunk, const ModuleContext& context) const;

  const TransformerConfig& config_;
  Target target_;
  bool cached_;  // only logits of a row are wanted (BatchShape::cached)
  std::int64_t tokens_;
  std::int64_t own_rows_;
  std::int64_t stream_rows_;
  std::int64_t columns_;  // of a rank, padding included
  std::int64_t chunk_rows_;
};

}  // namespace tessera::nn
