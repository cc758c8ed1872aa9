#include "src/nn/block_run.h"

#include "src/nn/regions.h"
#include "src/nn/support.h"

namespace tessera::nn {

ValueId BlockFlow::input_of(BlockLayer layer) const {
  const ValueId inputs[] = {qkv_input, kAttention, up_input, kHidden};
  return inputs[static_cast<std::size_t>(layer)];
}

ValueId BlockFlow::gradient_of(BlockLayer layer) const {
  const ValueId gradients[] = {own_qkv_gradient, attention_branch_whole, kPreactivationGradient,
                               mlp_branch_whole};
  return gradients[static_cast<std::size_t>(layer)];
}

BlockRun::BlockRun(const TransformerConfig& config, const ModuleContext& context, const BlockShapes& shapes,
                   int chunk)
    : config_(config),
      context_(context),
      shapes_(shapes),
      chunk_(chunk),
      flow_(config, shapes.split, shapes.chunks, shapes.cached.capacity > 0),
      indices_(config),
      compute_(compute_context(context)) {
  attention_shape_.dropout =
      dropout_of(context, config.attention_dropout, context.tensor_rank * shapes.attention.heads);
}

void BlockRun::norm1() const {
  norm_forward(context_, compute_, norm_pass(kMean1, kRstd1), indices_.norm1,
               {.input = value(kInput), .output = value(kNorm1)});
}

void BlockRun::qkv() const {
  linear(BlockLayer::qkv, value(flow_.own_qkv));
  if (!flow_.shares) return rotate();
  if (chunk_ == kAllChunks) part_of_head();
}

void BlockRun::part_of_head() const {
  const std::int64_t part = 2 * shapes_.part_channels, queries = shapes_.attention.channels;
  copy_columns(part, {value(kOwnQkv), shapes_.qkv.out, queries}, {value(kPart), part});
}

// The rotation is of whole heads.
void BlockRun::heads() const {
  copy_columns(shapes_.attention.channels, {value(kOwnQkv), shapes_.qkv.out},
               {value(kQkv), shapes_.attention.qkv_channels()});
  for_each_piece(value(kPartsWhole), value(kQkv), [&](const Columns& part, const Columns& head) {
    copy_columns(shapes_.part_channels, part, head);
  });
  rotate();
}

void BlockRun::rotate() const {
  if (config_.rotary.empty()) return;
  kernels::RotaryShape shape = shapes_.rotary;
  shape.first_place += context_.position;
  kernels::rotary_forward(compute_, shape, config_.rotary.data(), value(kQkv));
}

void BlockRun::copy_columns(std::int64_t columns, const Columns& from, const Columns& to) const {
  const std::int64_t bytes = bytes_of(config_.type);
  kernels::copy_rows(compute_,
                     {.rows = shapes_.rows,
                      .row_bytes = columns * bytes,
                      .input_stride = from.row_numel * bytes,
                      .output_stride = to.row_numel * bytes},
                     at(from.tensor, from.column * bytes), at(to.tensor, to.column * bytes));
}

template <class Function>
void BlockRun::for_each_piece(void* parts, void* heads, Function&& function) const {
  const std::int64_t channels = shapes_.part_channels, sharing = shapes_.head_ranks;
  const std::int64_t first = context_.tensor_rank / sharing * sharing;  // that has a part of the head
  const kernels::AttentionShape& attention = shapes_.attention;
  for (std::int64_t piece = 0; piece < sharing; ++piece) {
    void* part = at(parts, (first + piece) * shapes_.part_bytes);
    for (const std::int64_t of : {0, 1})  // of the keys, of the values
      function(Columns{part, 2 * channels, of * channels},
               Columns{heads, attention.qkv_channels(),
                       attention.channels + of * attention.head_channels() + piece * channels});
  }
}

void BlockRun::attention() const {
  kernels::attention_forward(compute_, attention_shape_, value(kQkv), value(kAttention),
                             static_cast<float*>(value(kLogSumExp)));
}

void BlockRun::cached_attention() const {
  kernels::CachedAttentionShape shape = shapes_.cached;
  shape.position = context_.position;
  kernels::cached_attention_forward(compute_, shape, value(kQkv), value(flow_.cache()), value(kAttention));
}

void BlockRun::projection() const {
  if (flow_.split) return partial(BlockLayer::projection, kAttentionPartial);
  linear(BlockLayer::projection, value(kAttentionBranch));
  drop(kOfAttention, value(kAttentionBranch), value(kAttentionBranch));
}

void BlockRun::attention_branch() const {
  finish(kAttentionSum, &indices_.projection, value(kAttentionBranch));
  drop(kOfAttention, value(kAttentionBranch), value(kAttentionBranch));
}

void BlockRun::norm2() const {
  norm_forward(context_, compute_, norm_pass(kMean2, kRstd2), indices_.norm2,
               {.input = value(flow_.attention_branch_all),
                .residual = value(kInput),
                .sum = value(kMiddle),
                .output = value(kNorm2)});
}

void BlockRun::norm2_again() const {
  norm_forward(context_, compute_, norm_pass(kMean2, kRstd2), indices_.norm2,
               {.input = value(kMiddle), .output = value(kNorm2)});
}

void BlockRun::up() const { linear(BlockLayer::up, value(kPreactivation)); }

// Apart from the matmul before it, so that its bits do not depend on whether that is repeated.
void BlockRun::activation() const {
  if (config_.mlp == MlpKind::swiglu)
    kernels::swiglu_forward(compute_, swiglu(), value(kPreactivation), value(kHidden));
  else
    kernels::gelu_forward(compute_, config_.type, shapes_.rows * shapes_.hidden, value(kPreactivation),
                          value(kHidden));
}

void BlockRun::down() const {
  if (flow_.split) return partial(BlockLayer::down, kMlpPartial);
  void* const output = value(kOutput);
  linear(BlockLayer::down, output);
  drop(kOfMlp, output, output);
  add_to_middle(output);
}

void BlockRun::mlp_branch() const {
  void* const branch = value(flow_.gathers_sums ? ValueId{kMlpBranch} : kOutput);
  finish(kMlpSum, &indices_.down, branch);
  drop(kOfMlp, branch, branch);
  if (!flow_.gathers_sums) add_to_middle(branch);
}

void BlockRun::add_mlp() const { add_to_middle(value(kMlpBranchAll)); }

void BlockRun::add_to_middle(const void* branch) const {
  kernels::add(compute_, config_.type, shapes_.stream_rows * config_.channels, branch, value(kMiddle),
               value(kOutput));
}

void BlockRun::drop_mlp_gradient() const {
  drop_of_stream(kOfMlp, value(kOutputGradient), value(kMlpBranchGradient));
}

void BlockRun::down_parameters() const { parameter_gradients(BlockLayer::down); }

void BlockRun::down_gradient() const { input_gradient(BlockLayer::down, kHiddenGradient); }

void BlockRun::activation_gradient() const {
  if (config_.mlp == MlpKind::swiglu)
    return kernels::swiglu_backward(compute_, swiglu(), value(kPreactivation), value(kHiddenGradient),
                                    value(kPreactivationGradient));
  const std::size_t bias = indices_.up + 1;
  if (flow_.sums_up_bias && context_.gradients[bias] != nullptr)
    kernels::gelu_backward_bias(compute_, {.rows = shapes_.rows,
                                           .columns = shapes_.hidden,
                                           .type = config_.type,
                                           .input = value(kPreactivation),
                                           .output_gradient = value(kHiddenGradient),
                                           .input_gradient = value(kPreactivationGradient),
                                           .beta = context_.betas[bias],
                                           .bias_gradient = context_.gradients[bias]});
  else
    kernels::gelu_backward(compute_, config_.type, shapes_.rows * shapes_.hidden, value(kPreactivation),
                           value(kHiddenGradient), value(kPreactivationGradient));
}

void BlockRun::up_parameters() const { parameter_gradients(BlockLayer::up); }

void BlockRun::up_gradient() const {
  if (flow_.split) return input_partial(BlockLayer::up, kNorm2Partial);
  input_gradient(BlockLayer::up, kNorm2Gradient);
}

void BlockRun::norm2_sum() const { finish(kNorm2Sum, nullptr, value(kNorm2Gradient)); }

void BlockRun::norm2_gradient() const {
  norm_backward(context_, compute_, norm_pass(kMean2, kRstd2), indices_.norm2,
                {.input = value(kMiddle),
                 .output_gradient = value(flow_.norm2_gradient),
                 .residual_gradient = value(kOutputGradient),
                 .input_gradient = value(kMiddleGradient)});
}

void BlockRun::drop_attention_gradient() const {
  drop_of_stream(kOfAttention, value(kMiddleGradient), value(kAttentionBranchGradient));
}

void BlockRun::projection_parameters() const { parameter_gradients(BlockLayer::projection); }

void BlockRun::projection_gradient() const { input_gradient(BlockLayer::projection, kAttentionGradient); }

void BlockRun::attention_gradient() const {
  kernels::attention_backward(compute_, attention_shape_,
                              {.qkv = value(kQkv),
                               .output = value(kAttention),
                               .log_sum_exp = static_cast<const float*>(value(kLogSumExp)),
                               .output_gradient = value(kAttentionGradient),
                               .qkv_gradient = value(kQkvGradient)});
  if (!config_.rotary.empty())
    kernels::rotary_backward(compute_, shapes_.rotary, config_.rotary.data(), value(kQkvGradient));
  if (flow_.shares) split_gradient();
}

// What this rank's queries add to the gradients of keys and values, by the ranks that made these.
void BlockRun::split_gradient() const {
  kernels::fill(compute_, config_.type, shapes_.tensor_ranks * shapes_.rows * 2 * shapes_.part_channels, 0.0f,
                value(kPartsPartial));
  for_each_piece(value(kPartsPartial), value(kQkvGradient), [&](const Columns& part, const Columns& head) {
    copy_columns(shapes_.part_channels, head, part);
  });
}

void BlockRun::heads_gradient() const {
  const std::int64_t part = 2 * shapes_.part_channels, queries = shapes_.attention.channels;
  copy_columns(queries, {value(kQkvGradient), shapes_.attention.qkv_channels()},
               {value(kOwnQkvGradient), shapes_.qkv.out});
  kernels::finish_sum(compute_, {.rows = shapes_.rows, .channels = part, .type = config_.type},
                      static_cast<const float*>(value(kPartSum)), nullptr, context_.workspace);
  copy_columns(part, {context_.workspace, part}, {value(kOwnQkvGradient), shapes_.qkv.out, queries});
}

void BlockRun::qkv_parameters() const { parameter_gradients(BlockLayer::qkv); }

void BlockRun::qkv_gradient() const {
  if (flow_.split) return input_partial(BlockLayer::qkv, kNorm1Partial);
  input_gradient(BlockLayer::qkv, kNorm1Gradient);
}

void BlockRun::norm1_sum() const { finish(kNorm1Sum, nullptr, value(kNorm1Gradient)); }

void BlockRun::norm1_gradient() const {
  norm_backward(context_, compute_, norm_pass(kMean1, kRstd1), indices_.norm1,
                {.input = value(kInput),
                 .output_gradient = value(flow_.norm1_gradient),
                 .residual_gradient = value(kMiddleGradient),
                 .input_gradient = value(kInputGradient)});
}

void BlockRun::norm1_parameters() const {
  norm_backward(context_, compute_, norm_pass(kMean1, kRstd1), indices_.norm1,
                {.input = value(kInput), .output_gradient = value(flow_.norm1_gradient)});
}

void BlockRun::norm2_parameters() const {
  norm_backward(context_, compute_, norm_pass(kMean2, kRstd2), indices_.norm2,
                {.input = value(kMiddle), .output_gradient = value(flow_.norm2_gradient)});
}

void BlockRun::up_bias() const { parameter_gradients(BlockLayer::up); }

NormPass BlockRun::norm_pass(ValueId mean, ValueId rstd) const {
  NormPass pass = norm_of(config_, shapes_);
  pass.mean = static_cast<float*>(value(mean));
  pass.rstd = static_cast<float*>(value(rstd));
  return pass;
}

void BlockRun::drop(Branch branch, const void* tensor, void* output) const {
  drop_own_rows(config_, context_, compute_, config_.heads + branch, tensor, output, chunk_);
}

void BlockRun::drop_of_stream(Branch branch, const void* tensor, void* output) const {
  drop_stream(config_, context_, compute_, config_.heads + branch, tensor, output, chunk_);
}

kernels::SwigluShape BlockRun::swiglu() const {
  return {.rows = shapes_.rows, .hidden = shapes_.hidden, .type = config_.type};
}

void BlockRun::linear(BlockLayer layer, void* output) const {
  const std::size_t weight = indices_.weight(layer);
  kernels::linear_forward(compute_, shapes_.of(layer), value(flow_.input_of(layer)),
                          context_.parameters[weight],
                          config_.biases ? context_.parameters[weight + 1] : nullptr, output);
  add_adapter(layer, output, config_.type);
}

void BlockRun::partial(BlockLayer layer, ValueId sum) const {
  auto* const output = static_cast<float*>(value(sum));
  kernels::linear_forward_partial(compute_, shapes_.of(layer), value(flow_.input_of(layer)),
                                  context_.parameters[indices_.weight(layer)], output);
  add_adapter(layer, output, DType::fp32);
}

void BlockRun::finish(ValueId sum, const std::size_t* weight, void* output) const {
  const bool bias = weight != nullptr && config_.biases;
  kernels::finish_sum(
      compute_, {.rows = shapes_.own_rows, .channels = config_.channels, .type = config_.type},
      static_cast<const float*>(value(sum)), bias ? context_.parameters[*weight + 1] : nullptr, output);
}

void BlockRun::parameter_gradients(BlockLayer layer) const {
  linear_parameter_gradients(context_, compute_,
                             {.shape = shapes_.of(layer),
                              .input = value(flow_.input_of(layer)),
                              .output_gradient = value(flow_.gradient_of(layer)),
                              .weight = indices_.weight(layer),
                              .bias = config_.biases});
}

void BlockRun::input_gradient(BlockLayer layer, ValueId gradient) const {
  kernels::linear_backward_input(compute_, shapes_.of(layer), value(flow_.gradient_of(layer)),
                                 context_.parameters[indices_.weight(layer)], 0.0f, value(gradient));
  add_adapter_gradient(layer, value(gradient), config_.type);
}

void BlockRun::input_partial(BlockLayer layer, ValueId sum) const {
  auto* const gradient = static_cast<float*>(value(sum));
  kernels::linear_backward_input_partial(compute_, shapes_.of(layer), value(flow_.gradient_of(layer)),
                                         context_.parameters[indices_.weight(layer)], gradient);
  add_adapter_gradient(layer, gradient, DType::fp32);
}

}  // namespace tessera::nn
