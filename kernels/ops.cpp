// The public face of every op: one line each.
#include "kernels/ops.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/check.h"
#include "kernels/check_fp8.h"
#include "kernels/libraries.h"
#include "tessera/error.h"

namespace tessera::kernels {
namespace {

const Ops& ops_of(DeviceType device) { return device == DeviceType::cuda ? cuda_ops() : cpu_ops(); }

}  // namespace

void optimizer_update(const ComputeContext& context, const OptimizerArguments& arguments) {
  check_update(arguments);
  ops_of(context.device).optimizer_update(context, arguments);
}

void add_loss(const ComputeContext& context, const LossTotal* total, LossSum* sum) {
  ops_of(context.device).add_loss(context, total, sum);
}

void set_gate(const ComputeContext& context, const GateArguments& arguments, UpdateGate* gate) {
  ops_of(context.device).set_gate(context, arguments, gate);
}

void cast(const ComputeContext& context, std::int64_t numel, DType input_type, const void* input,
          DType output_type, void* output) {
  ops_of(context.device).cast(context, numel, input_type, input, output_type, output);
}

void fill(const ComputeContext& context, DType type, std::int64_t numel, float value, void* output) {
  ops_of(context.device).fill(context, type, numel, value, output);
}

void copy_bytes(const ComputeContext& context, std::int64_t bytes, const void* input, void* output) {
  ops_of(context.device).copy_bytes(context, bytes, input, output);
}

void copy_rows(const ComputeContext& context, const CopyShape& shape, const void* input, void* output) {
  check_copy(shape);
  if (shape.rows > 0 && shape.row_bytes > 0) ops_of(context.device).copy_rows(context, shape, input, output);
}

void add(const ComputeContext& context, DType type, std::int64_t numel, const void* a, const void* b,
         void* output) {
  ops_of(context.device).add(context, type, numel, a, b, output);
}

void gelu_forward(const ComputeContext& context, DType type, std::int64_t numel, const void* input,
                  void* output) {
  ops_of(context.device).gelu_forward(context, type, numel, input, output);
}

void gelu_backward(const ComputeContext& context, DType type, std::int64_t numel, const void* input,
                   const void* output_gradient, void* input_gradient) {
  ops_of(context.device).gelu_backward(context, type, numel, input, output_gradient, input_gradient);
}

std::int64_t gelu_backward_bias_workspace_bytes(std::int64_t rows, std::int64_t columns,
                                                const Target& target) {
  return column_sum_workspace_bytes(rows, columns, target);
}

void gelu_backward_bias(const ComputeContext& context, const GeluBackwardBias& arguments) {
  const char* op = "gelu_backward_bias";
  check_compute_type(arguments.type, op);
  check_beta(arguments.beta, op);
  check_workspace(context, column_sum_workspace_bytes(arguments.rows, arguments.columns, context.target()),
                  op);
  ops_of(context.device).gelu_backward_bias(context, arguments);
}

void dropout(const ComputeContext& context, const DropoutShape& shape, const Dropout& dropout,
             const void* input, void* output) {
  check_dropout(shape, dropout);
  const std::int64_t numel = shape.rows_or_all() * shape.channels;
  if (numel <= 0) return;
  if (dropout.threshold > 0) return ops_of(context.device).dropout(context, shape, dropout, input, output);
  if (input != output) copy_bytes(context, numel * bytes_of(shape.type), input, output);
}

void swiglu_forward(const ComputeContext& context, const SwigluShape& shape, const void* gate_up,
                    void* output) {
  ops_of(context.device).swiglu_forward(context, shape, gate_up, output);
}

void swiglu_backward(const ComputeContext& context, const SwigluShape& shape, const void* gate_up,
                     const void* output_gradient, void* gate_up_gradient) {
  ops_of(context.device).swiglu_backward(context, shape, gate_up, output_gradient, gate_up_gradient);
}

void rotary_forward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                    void* tensor) {
  ops_of(context.device).rotary_forward(context, shape, frequencies, tensor);
}

void rotary_backward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                     void* gradient) {
  ops_of(context.device).rotary_backward(context, shape, frequencies, gradient);
}

void ordered_chain(const ComputeContext& context, std::int64_t numel, DType type,
                   std::span<const void* const> contributions, float beta, float* accumulator,
                   const Squares& squares) {
  check_squares(squares);
  ops_of(context.device).ordered_chain(context, numel, type, contributions, beta, accumulator, squares);
}

void balanced_sum(const ComputeContext& context, std::int64_t numel, DType type,
                  std::span<const void* const> contributions, float* result, float* scratch) {
  const std::size_t count = contributions.size();
  if (count <= 3) return ordered_chain(context, numel, type, contributions, 0.0f, result);
  const std::size_t half = std::bit_floor(count - 1);
  balanced_sum(context, numel, type, contributions.first(half), result, scratch);
  if (count - half == 1) return accumulate(context, numel, type, contributions[half], 1.0f, result);
  balanced_sum(context, numel, type, contributions.subspan(half), scratch, scratch + numel);
  accumulate(context, numel, DType::fp32, scratch, 1.0f, result);
}

void sum_of_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                    const Squares& squares) {
  check_squares(squares);
  ops_of(context.device).sum_of_squares(context, numel, type, input, squares);
}

std::int64_t column_sum_workspace_bytes(std::int64_t rows, std::int64_t columns, const Target& target) {
  return ops_of(target.device).column_sum_workspace_bytes(rows, columns, target);
}

void column_sum(const ComputeContext& context, std::int64_t rows, std::int64_t columns, DType type,
                const void* input, float beta, void* sums) {
  ops_of(context.device).column_sum(context, rows, columns, type, input, beta, sums);
}

void layer_norm_forward(const ComputeContext& context, const LayerNormShape& shape,
                        const LayerNormForward& arguments) {
  ops_of(context.device).layer_norm_forward(context, shape, arguments);
}

std::int64_t layer_norm_backward_workspace_bytes(const LayerNormShape& shape, const Target& target) {
  return ops_of(target.device).layer_norm_backward_workspace_bytes(shape, target);
}

void layer_norm_backward(const ComputeContext& context, const LayerNormShape& shape,
                         const LayerNormBackward& arguments) {
  ops_of(context.device).layer_norm_backward(context, shape, arguments);
}

void rms_norm_forward(const ComputeContext& context, const RmsNormShape& shape,
                      const RmsNormForward& arguments) {
  ops_of(context.device).rms_norm_forward(context, shape, arguments);
}

std::int64_t rms_norm_backward_workspace_bytes(const RmsNormShape& shape, const Target& target) {
  return ops_of(target.device).rms_norm_backward_workspace_bytes(shape, target);
}

void rms_norm_backward(const ComputeContext& context, const RmsNormShape& shape,
                       const RmsNormBackward& arguments) {
  ops_of(context.device).rms_norm_backward(context, shape, arguments);
}

void embedding_forward(const ComputeContext& context, const EmbeddingShape& shape, const std::int32_t* tokens,
                       const void* token_table, const void* position_table, void* output) {
  ops_of(context.device).embedding_forward(context, shape, tokens, token_table, position_table, output);
}

void embedding_forward_partial(const ComputeContext& context, const EmbeddingShape& shape,
                               const std::int32_t* tokens, const void* token_table, float* output) {
  ops_of(context.device).embedding_forward_partial(context, shape, tokens, token_table, output);
}

std::int64_t embedding_backward_workspace_bytes(const EmbeddingShape& shape, const Target& target) {
  return ops_of(target.device).embedding_backward_workspace_bytes(shape, target);
}

void embedding_backward(const ComputeContext& context, const EmbeddingShape& shape,
                        const EmbeddingBackward& arguments) {
  ops_of(context.device).embedding_backward(context, shape, arguments);
}

void round_sum(const ComputeContext& context, const RoundSumShape& shape, const float* sum, const void* table,
               void* output) {
  ops_of(context.device).round_sum(context, shape, sum, table, output);
}

void open_libraries(DeviceType device) {
  if (device == DeviceType::cuda) cuda::open_libraries();
}

std::int64_t matmul_workspace_bytes(const MatmulShape& shape, const Target& target) {
  return ops_of(target.device).matmul_workspace_bytes(shape, target);
}

void matmul(const ComputeContext& context, const MatmulShape& shape, const void* a, const void* b,
            const void* bias, void* c) {
  ops_of(context.device).matmul(context, shape, a, b, bias, c);
}

void quantize(const ComputeContext& context, const QuantizeShape& shape, const void* input, void* values,
              float* scales) {
  check_quantize(shape);
  ops_of(context.device).quantize(context, shape, input, values, scales);
}

std::int64_t matmul_fp8_workspace_bytes(const MatmulFp8Shape& shape, const Target& target) {
  check_matmul_fp8(shape);
  return ops_of(target.device).matmul_fp8_workspace_bytes(shape, target);
}

void matmul_fp8(const ComputeContext& context, const MatmulFp8Shape& shape, const Fp8Matrix& a,
                const Fp8Matrix& b, const void* bias, void* c) {
  check_matmul_fp8(shape);
  check_fp8_bias(shape, bias);
  ops_of(context.device).matmul_fp8(context, shape, a, b, bias, c);
}

std::int64_t cross_entropy_workspace_bytes(const CrossEntropyShape& shape, const Target& target) {
  return ops_of(target.device).cross_entropy_workspace_bytes(shape, target);
}

void cross_entropy_forward(const ComputeContext& context, const CrossEntropyShape& shape, const void* input,
                           const void* weight, const std::int32_t* targets, float* losses,
                           CrossEntropyLoss* total) {
  ops_of(context.device).cross_entropy_forward(context, shape, input, weight, targets, losses, total);
}

void cross_entropy_forward_backward(const ComputeContext& context, const CrossEntropyShape& shape,
                                    const CrossEntropyForwardBackward& arguments) {
  ops_of(context.device).cross_entropy_forward_backward(context, shape, arguments);
}

void softmax_statistics(const ComputeContext& context, const SoftmaxShape& shape, const float* logits,
                        const std::int32_t* targets, SoftmaxStatistics* statistics) {
  check_softmax(shape, "softmax_statistics");
  ops_of(context.device).softmax_statistics(context, shape, logits, targets, statistics);
}

void softmax_gradients(const ComputeContext& context, const SoftmaxShape& shape,
                       const SoftmaxGradients& arguments) {
  check_softmax(shape, "softmax_gradients");
  ops_of(context.device).softmax_gradients(context, shape, arguments);
}

void softmax_losses(const ComputeContext& context, const SoftmaxShape& shape,
                    const SoftmaxStatistics* statistics, const std::int32_t* targets, float* losses) {
  check_softmax(shape, "softmax_losses");
  ops_of(context.device).softmax_losses(context, shape, statistics, targets, losses);
}

void total_loss(const ComputeContext& context, std::int64_t rows, const std::int32_t* targets,
                const float* losses, LossTotal* total) {
  ops_of(context.device).total_loss(context, rows, targets, losses, total);
}

std::int64_t attention_forward_workspace_bytes(const AttentionShape& shape, const Target& target) {
  return ops_of(target.device).attention_forward_workspace_bytes(shape, target);
}

void attention_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv,
                       void* output, float* log_sum_exp) {
  ops_of(context.device).attention_forward(context, shape, qkv, output, log_sum_exp);
}

std::int64_t attention_backward_workspace_bytes(const AttentionShape& shape, const Target& target) {
  return ops_of(target.device).attention_backward_workspace_bytes(shape, target);
}

void attention_backward(const ComputeContext& context, const AttentionShape& shape,
                        const AttentionBackward& arguments) {
  ops_of(context.device).attention_backward(context, shape, arguments);
}

std::int64_t cached_attention_workspace_bytes(const CachedAttentionShape& shape, const Target& target) {
  check_cached_attention(shape);
  return ops_of(target.device).cached_attention_workspace_bytes(shape, target);
}

void cached_attention_forward(const ComputeContext& context, const CachedAttentionShape& shape,
                              const void* qkv, void* cache, void* output) {
  check_cached_attention(shape);
  check_workspace(context, cached_attention_workspace_bytes(shape, context.target()),
                  "cached_attention_forward");
  ops_of(context.device).cached_attention_forward(context, shape, qkv, cache, output);
}

void accumulate(const ComputeContext& context, std::int64_t numel, DType type, const void* input, float beta,
                float* accumulator) {
  ordered_chain(context, numel, type, std::array{input}, beta, accumulator);
}

void add_positions(const ComputeContext& context, const PositionShape& shape, const float* sum,
                   const void* position_table, void* output) {
  check_positions(shape);
  round_sum(context,
            {.rows = shape.rows,
             .channels = shape.channels,
             .type = shape.type,
             .table_rows = shape.sequence,
             .first_row = shape.first_row},
            sum, position_table, output);
}

std::uint32_t dropout_threshold(double share) {
  if (!(share >= 0.0 && share < 1.0))
    throw UsageError("dropout: the share is " + std::to_string(share) +
                     "; it must be 0 or more, and below 1");
  if (share == 0.0) return 0;
  return static_cast<std::uint32_t>(std::clamp(std::lround(share * 65536.0), 1L, 65535L));
}

std::int64_t rotary_workspace_bytes(const RotaryShape& shape) {
  return workspace_part_bytes(shape.sequence * shape.head_channels * 4);
}

}  // namespace tessera::kernels
