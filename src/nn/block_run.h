// The compute of a transformer block: its values, and what each of its parts does with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "kernels/kernels.h"
#include "src/nn/block_shapes.h"
#include "src/nn/lora_shapes.h"
#include "tessera/module.h"

namespace tessera::nn {

// Where each layer's parameters begin among the module's: a gain or weight, then the bias where there is one.
struct BlockIndices {
  std::size_t norm1, qkv, projection, norm2, up, down, count;
  std::size_t adapters_of[std::size(kBlockLayers)];  // A, then B; 0 where a layer has none

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
    for (const BlockLayer layer : kBlockLayers) {
      const bool has = !lora_segments(config, layer).empty();
      adapters_of[static_cast<std::size_t>(layer)] = has ? count : 0;
      if (has) count += 2;
    }
  }

  // Where the layer's weight is.
  std::size_t weight(BlockLayer layer) const {
    const std::size_t weights[] = {qkv, projection, up, down};
    return weights[static_cast<std::size_t>(layer)];
  }
  std::size_t adapters(BlockLayer layer) const { return adapters_of[static_cast<std::size_t>(layer)]; }
  bool has_adapters(BlockLayer layer) const { return adapters(layer) > 0; }
};

// All are in the model's type, unless said otherwise. BlockShapes says what their rows and columns are.
enum BlockValue : ValueId {
  kNorm1,            // [stream rows, channels]: output of the first norm
  kMean1,            // [stream rows] fp32; nothing for RMSNorm
  kRstd1,            // [stream rows] fp32
  kQkv,              // [tokens, qkv channels], rotated
  kAttention,        // [tokens, channels of the heads]
  kLogSumExp,        // [sequences, heads, length] fp32
  kAttentionBranch,  // [stream rows, channels]: what attention adds to the residual stream
  kMiddle,           // [stream rows, channels]: input + kAttentionBranch
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
  // Layers that have adapters have two values of [tokens, adapters · rank], in the order of BlockLayer: the
  // scale times A x, and the gradient of that times the scale.
  kQkvAdapter,
  kProjectionAdapter,
  kUpAdapter,
  kDownAdapter,
  kQkvAdapterGradient,
  kProjectionAdapterGradient,
  kUpAdapterGradient,
  kDownAdapterGradient,
  kValuesAlone,  // on one rank, so many
  // Several tensor ranks also have what exchanges make, and are made of. `Whole` is [tokens, channels], of
  // all ranks' rows. `Partial` is [tokens, channels] fp32, this rank's part of a sum. `Sum` is [stream rows,
  // channels] fp32.
  kNorm1Whole = kValuesAlone,
  kAttentionPartial,
  kAttentionSum,
  kNorm2Whole,
  kMlpPartial,
  kMlpSum,
  kMlpBranchWhole,  // of the branch's gradient
  kNorm2Partial,    // of the norm's output's gradient
  kNorm2Sum,
  kAttentionBranchWhole,
  kNorm1Partial,
  kNorm1Sum,
  // Where the sequence is not parallel, a sum's own rows are finished, in the model's type, and then
  // gathered: `All` is [tokens, channels]. What they are made of are kAttentionBranch, the next but one,
  // kNorm2Gradient and kNorm1Gradient.
  kAttentionBranchAll,
  kMlpBranch,  // [own rows, channels]: what the MLP adds to the residual stream
  kMlpBranchAll,
  kNorm2GradientAll,
  kNorm1GradientAll,
  kValuesOfHeads,  // so many where each rank has whole heads
  // Where several ranks share a head of keys and values, there are these. A part is this rank's channels of
  // its head's keys, then of its values.
  kOwnQkv = kValuesOfHeads,  // [tokens, columns of this rank's product]: queries, then its part
  kPart,                     // [tokens, 2 · part channels]
  kPartsWhole,               // [ranks, tokens, 2 · part channels]: of all ranks
  kPartsPartial,    // the same, this rank's terms of the gradients; 0 for heads that it does not read
  kPartSum,         // [tokens, 2 · part channels] fp32: the gradient of this rank's part
  kOwnQkvGradient,  // as kOwnQkv
};

// Which values stand where they depend on dropout, ranks and chunks.
struct BlockFlow {
  int chunks;
  bool drops;
  bool split;         // over several tensor ranks
  bool gathers_sums;  // of these, each has all rows of the residual stream
  bool shares;        // of which several share a head of keys and values
  bool cached;        // keys and values are kept from evaluation to evaluation
  // What makes the gradient of the activation function also sums it up, for the bias of `up`. Not where it
  // runs on chunks of rows, and no kernel does so with SwiGLU.
  bool sums_up_bias;
  // The gradients of what the two branches end with, before they are added to the residual stream.
  ValueId mlp_branch, attention_branch;
  // What the layers between norms and residual stream read: values of all rows.
  ValueId qkv_input, up_input, mlp_branch_whole, attention_branch_whole;
  // What the product of queries, keys and values makes, and its gradient.
  ValueId own_qkv, own_qkv_gradient;
  // What norms read of the attention's branch and, in backward, of the gradients of their outputs.
  ValueId attention_branch_all, norm2_gradient, norm1_gradient;

  BlockFlow(const TransformerConfig& config, BlockSplit block_split, int chunk_count, bool keeps_keys)
      : chunks(chunk_count),
        drops(config.dropout > 0),
        split(block_split != BlockSplit::none),
        gathers_sums(split && !config.sequence_parallel),
        shares(block_split == BlockSplit::head_parts),
        cached(keeps_keys),
        sums_up_bias(config.biases && config.mlp == MlpKind::gelu && chunks == 1),
        mlp_branch(drops ? ValueId{kMlpBranchGradient} : SharedValue::output_gradient),
        attention_branch(drops ? kAttentionBranchGradient : kMiddleGradient),
        qkv_input(gathers_rows() ? kNorm1Whole : kNorm1),
        up_input(gathers_rows() ? kNorm2Whole : kNorm2),
        mlp_branch_whole(gathers_rows() ? ValueId{kMlpBranchWhole} : mlp_branch),
        attention_branch_whole(gathers_rows() ? ValueId{kAttentionBranchWhole} : attention_branch),
        own_qkv(shares ? kOwnQkv : kQkv),
        own_qkv_gradient(shares ? kOwnQkvGradient : kQkvGradient),
        attention_branch_all(gathers_sums ? kAttentionBranchAll : kAttentionBranch),
        norm2_gradient(gathers_sums ? kNorm2GradientAll : kNorm2Gradient),
        norm1_gradient(gathers_sums ? kNorm1GradientAll : kNorm1Gradient) {}

  // Whether what stands on the residual stream has a rank's own rows, which products need of all ranks.
  bool gathers_rows() const { return split && !gathers_sums; }

  // What a layer reads, and the gradient of what it makes.
  ValueId input_of(BlockLayer layer) const;
  ValueId gradient_of(BlockLayer layer) const;
  // The value between A and B of the layer's adapters, and its gradient.
  static constexpr ValueId adapter_of(BlockLayer layer) { return kQkvAdapter + static_cast<ValueId>(layer); }
  static constexpr ValueId adapter_gradient_of(BlockLayer layer) {
    return kQkvAdapterGradient + static_cast<ValueId>(layer);
  }

  // Where keys and values are kept, see kernels/cached_attention.h.
  ValueId cache() const {
    if (!split) return kValuesAlone;
    return shares ? ValueId{kOwnQkvGradient} + 1 : ValueId{kValuesOfHeads};
  }
  // The values of a block besides pieces.
  ValueId wholes() const { return cache() + (cached ? 1 : 0); }
  // With several chunks: what a part touches of a value where it runs on one of them (block_chunks.cpp).
  ValueId piece(ValueId whole, int chunk) const;
};

// Runs one part on one microbatch. The values that a part reads and writes are in the table of parts
// (block_graph.cpp).
class BlockRun {
 public:
  // All arguments outlive it. `chunk`: the one that the part runs on, of which the shapes are; kAllChunks:
  // none.
  BlockRun(const TransformerConfig& config, const ModuleContext& context, const BlockShapes& shapes,
           int chunk = kAllChunks);

  // Forward, and what a recompute runs in place of norm2().
  void norm1() const;
  void qkv() const;
  void part_of_head() const;  // what qkv() ends with where there are several chunks and ranks share a head
  void heads() const;         // where ranks share a head of keys and values; so is heads_gradient()
  void attention() const;
  void cached_attention() const;  // in its place
  void projection() const;
  void attention_branch() const;  // on several tensor ranks, behind the sum; so are those of this kind below
  void norm2() const;
  void norm2_again() const;
  void up() const;
  void activation() const;
  void down() const;
  void mlp_branch() const;
  void add_mlp() const;  // where sums are gathered

  // Backward: gradients of parameters, and of what the layer of that name reads.
  void drop_mlp_gradient() const;
  void down_parameters() const;
  void down_gradient() const;
  void activation_gradient() const;
  void up_parameters() const;
  void up_gradient() const;
  void norm2_sum() const;
  void norm2_gradient() const;
  void drop_attention_gradient() const;
  void projection_parameters() const;
  void projection_gradient() const;
  void attention_gradient() const;
  void heads_gradient() const;
  void qkv_parameters() const;
  void qkv_gradient() const;
  void norm1_sum() const;
  void norm1_gradient() const;
  // These make the gradients of the norms' parameters, where weight gradients run apart.
  void norm1_parameters() const;
  void norm2_parameters() const;
  void up_bias() const;  // likewise

  // A layer's adapters (lora_run.cpp) make the scale times A x; the gradient of that, times the scale; the
  // gradients of A and B.
  template <BlockLayer layer>
  void adapter() const {
    adapter(layer);
  }
  template <BlockLayer layer>
  void adapter_gradient() const {
    adapter_gradient(layer);
  }
  template <BlockLayer layer>
  void adapter_parameters() const {
    adapter_parameters(layer);
  }

 private:
  void adapter(BlockLayer layer) const;
  void adapter_gradient(BlockLayer layer) const;
  void adapter_parameters(BlockLayer layer) const;
  // Add B times the adapters' value to the layer's output, and its gradient times A to the gradient of the
  // layer's input. Both are of that type. They do nothing where the layer has no adapters.
  void add_adapter(BlockLayer layer, void* output, DType type) const;
  void add_adapter_gradient(BlockLayer layer, void* gradient, DType type) const;
  void add_to_middle(const void* branch) const;  // the output of the block
  void rotate() const;
  void split_gradient() const;
  // Copies all tokens' rows of so many columns of the model's type. Each side is a tensor of rows of
  // `row_numel`, and the columns begin at `column`.
  struct Columns {
    void* tensor;
    std::int64_t row_numel, column = 0;
  };
  void copy_columns(std::int64_t columns, const Columns& from, const Columns& to) const;
  // Calls function(part, head) for each piece of the head of keys and values that this rank reads: with the
  // piece's place in `parts`, which is as kPartsWhole, and in `heads`, which is as kQkv. A piece has
  // shapes_.part_channels columns.
  template <class Function>
  void for_each_piece(void* parts, void* heads, Function&& function) const;
  // What ends in the residual stream; numbers its dropout, behind the attention's heads.
  enum Branch : std::uint8_t { kOfAttention, kOfMlp };

  void* value(ValueId id) const {
    return context_.value(chunk_ == kAllChunks ? id : flow_.piece(id, chunk_));
  }

  NormPass norm_pass(ValueId mean, ValueId rstd) const;

  // output = type(sum + bias), [own rows, channels]; the bias is the parameter behind `weight`, if any.
  void finish(ValueId sum, const std::size_t* weight, void* output) const;
  // output = dropout(tensor), [own rows, channels], or [stream rows, channels].
  void drop(Branch branch, const void* tensor, void* output) const;
  void drop_of_stream(Branch branch, const void* tensor, void* output) const;

  kernels::SwigluShape swiglu() const;

  void linear(BlockLayer layer, void* output) const;
  void partial(BlockLayer layer, ValueId sum) const;

  void parameter_gradients(BlockLayer layer) const;

  void input_gradient(BlockLayer layer, ValueId gradient) const;
  void input_partial(BlockLayer layer, ValueId sum) const;

  const TransformerConfig& config_;
  const ModuleContext& context_;
  const BlockShapes& shapes_;
  const int chunk_;
  const BlockFlow flow_;
  kernels::AttentionShape attention_shape_ = shapes_.attention;
  BlockIndices indices_;
  kernels::ComputeContext compute_;
  const LoraShapes adapters_{config_, shapes_};
};

}  // namespace tessera::nn
