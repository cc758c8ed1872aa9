// The kernels of a GPU, each in turn with its limit, in times between device events. Of what is bound by
// memory the limit is a copy within the device that moves as many bytes as the kernel must read and write at
// the least; of attention it is a matrix product of as many operations. The counter `expected` is the ratio
// to the limit that a kernel should reach; no GPU has shown that it does. scripts/gpu_check.sh compares.
//   bench_cuda_kernels [--small] [Google Benchmark's own arguments]
//   --small   tensors of a few kilobytes, that show only that every call is legal
#include <fmt/format.h>

#include <string_view>

#include "benchmarks/gpu.h"
#include "benchmarks/updated_bytes.h"
#include "kernels/column_sum.h"
#include "kernels/cross_entropy_chunks.h"
#include "kernels/kernels.h"
#include "tessera/machine.h"
#include "tessera/shape.h"

namespace tessera {
namespace {

using kernels::ComputeContext;

constexpr int kRounds = 25, kSmallRounds = 2;

// A kernel that must move `bytes`, beside the copy that does: half of them read, half of them written.
Measurement beside_copy(const Gpu& gpu, Tensors& tensors, double expected, std::int64_t bytes,
                        std::function<double()> kernel) {
  const std::int64_t copied = bytes / 2;
  void *const from = tensors.take_filled(copied / 4, DType::fp32), *const to = tensors.take(copied);
  return {.expected = expected,
          .work = static_cast<double>(bytes) * 1e-9,
          .limit =
              [&gpu, from, to, copied] {
                return gpu.seconds_of([&] { gpu.device().copy(gpu.stream(), to, from, copied); });
              },
          .kernel = std::move(kernel)};
}

Measurement adamw(const Gpu& gpu, Tensors& tensors, DType type, std::int64_t numel) {
  kernels::OptimizerArguments arguments{
      .numel = numel, .gradient_type = type, .moment_count = 2, .parameter_type = type, .coefficients = {}};
  arguments.gradient = tensors.take_filled(numel, type);
  arguments.master = static_cast<float*>(tensors.take_filled(numel, DType::fp32));
  for (void*& moment : arguments.moments) moment = tensors.take_filled(numel, DType::fp32);
  if (type == DType::bf16) arguments.parameter = tensors.take(numel * 2);
  arguments.coefficients =
      rules::coefficients_of(AdamWOptions{.beta2 = 0.95}, {.learning_rate = 1e-4, .weight_decay = 0.1});
  return beside_copy(gpu, tensors, 0.92, numel * kUpdatedBytes,
                     [&gpu, arguments, context = tensors.context()] {
                       return gpu.seconds_of([&] { kernels::optimizer_update(context, arguments); });
                     });
}

// The gradient's norm, of a unit's gradients at a time: only read. No ratio is expected.
Measurement sum_of_squares(const Gpu& gpu, Tensors& tensors, std::int64_t numel) {
  const void* const input = tensors.take_filled(numel, DType::bf16);
  auto* const result = static_cast<SquareSum*>(tensors.take(sizeof(SquareSum)));
  return beside_copy(gpu, tensors, 0.0, numel * bytes_of(DType::bf16),
                     [&gpu, numel, input, result, context = tensors.context()] {
                       return gpu.seconds_of([&] {
                         kernels::sum_of_squares(context, numel, DType::bf16, input, {result, 0});
                       });
                     });
}

// The sum of eight ranks' gradients: each is read, the accumulator is only written. No ratio is expected,
// nor of what follows up to the norms.
Measurement ordered_chain(const Gpu& gpu, Tensors& tensors, std::int64_t numel) {
  std::vector<const void*> contributions;
  for (int i = 0; i < kernels::kFirstSweep; ++i)
    contributions.push_back(tensors.take_filled(numel, DType::bf16));
  float* const accumulator = tensors.floats(numel);
  const std::int64_t bytes = numel * (kernels::kFirstSweep * bytes_of(DType::bf16) + 4);
  return beside_copy(
      gpu, tensors, 0.0, bytes, [&gpu, numel, contributions, accumulator, context = tensors.context()] {
        return gpu.seconds_of(
            [&] { kernels::ordered_chain(context, numel, DType::bf16, contributions, 0.0f, accumulator); });
      });
}

// A bias's gradient: only read.
Measurement column_sum(const Gpu& gpu, Tensors& tensors, std::int64_t rows, std::int64_t columns) {
  const void* const input = tensors.take_filled(rows * columns, DType::bf16);
  void* const sums = tensors.take(columns * bytes_of(DType::bf16));
  const ComputeContext context =
      tensors.context(kernels::column_sum_workspace_bytes(rows, columns, {1, DeviceType::cuda}));
  return beside_copy(gpu, tensors, 0.0, (rows + 1) * columns * bytes_of(DType::bf16), [=, &gpu] {
    return gpu.seconds_of(
        [&] { kernels::column_sum(context, rows, columns, DType::bf16, input, 0.0f, sums); });
  });
}

// Forward reads gate and up and writes one tensor; backward reads that one's gradient, too, and writes two.
Measurement swiglu(const Gpu& gpu, Tensors& tensors, const kernels::SwigluShape& shape, bool backward) {
  const std::int64_t numel = shape.rows * shape.hidden, bytes = numel * bytes_of(shape.type);
  const void* const gate_up = tensors.take_filled(2 * numel, shape.type);
  void* const output = tensors.take_filled(numel, shape.type);  // or its gradient
  void* const gradient = tensors.take(backward ? 2 * bytes : 0);
  const auto call = [=, context = tensors.context()] {
    if (backward)
      kernels::swiglu_backward(context, shape, gate_up, output, gradient);
    else
      kernels::swiglu_forward(context, shape, gate_up, output);
  };
  return beside_copy(gpu, tensors, 0.0, bytes * (backward ? 5 : 3),
                     [&gpu, call] { return gpu.seconds_of(call); });
}

// Reads the tokens, each row of the tables once, and writes the output; the tokens go through the vocabulary.
Measurement embedding_forward(const Gpu& gpu, Tensors& tensors, const kernels::EmbeddingShape& shape) {
  const std::int64_t rows = shape.batch * shape.sequence;
  const std::int32_t* const tokens = tensors.take_targets(rows, shape.vocabulary);
  const void* const token_table = tensors.take_filled(shape.vocabulary * shape.channels, shape.type);
  const void* const position_table = tensors.take_filled(shape.positions * shape.channels, shape.type);
  void* const output = tensors.take(rows * shape.channels * bytes_of(shape.type));
  const std::int64_t moved = rows + std::min(rows, shape.vocabulary) + shape.sequence;
  return beside_copy(
      gpu, tensors, 0.0, moved * shape.channels * bytes_of(shape.type) + rows * 4,
      [=, &gpu, context = tensors.context()] {
        return gpu.seconds_of(
            [&] { kernels::embedding_forward(context, shape, tokens, token_table, position_table, output); });
      });
}

// Both norms with the residual addition around them: forward reads input and residual and writes their sum
// and the output, backward reads the sum and both gradients and writes one.
constexpr std::int64_t kNormTensors = 4;

// Wider rows are read again for each pass, so no ratio is expected of them.
double norm_expected(std::int64_t channels) { return channels <= 4096 ? 0.85 : 0.0; }

template <class Shape>
std::int64_t norm_bytes(const Shape& shape, std::int64_t statistics) {
  return shape.rows * (kNormTensors * shape.channels * bytes_of(shape.type) + statistics * 4);
}

template <bool kLayer, class Shape>
Measurement norm_forward(const Gpu& gpu, Tensors& tensors, const Shape& shape) {
  const std::int64_t numel = shape.rows * shape.channels;
  std::conditional_t<kLayer, kernels::LayerNormForward, kernels::RmsNormForward> arguments;
  arguments.input = tensors.take_filled(numel, shape.type);
  arguments.residual = tensors.take_filled(numel, shape.type);
  arguments.sum = tensors.take(numel * bytes_of(shape.type));
  arguments.gain = tensors.take_filled(shape.channels, shape.type);
  arguments.output = tensors.take(numel * bytes_of(shape.type));
  arguments.rstd = tensors.floats(shape.rows);
  if constexpr (kLayer) {
    arguments.bias = tensors.take_filled(shape.channels, shape.type);
    arguments.mean = tensors.floats(shape.rows);
  }
  const auto call = [shape, arguments, context = tensors.context()] {
    if constexpr (kLayer)
      kernels::layer_norm_forward(context, shape, arguments);
    else
      kernels::rms_norm_forward(context, shape, arguments);
  };
  return beside_copy(gpu, tensors, norm_expected(shape.channels), norm_bytes(shape, kLayer ? 2 : 1),
                     [&gpu, call] { return gpu.seconds_of(call); });
}

template <bool kLayer, class Shape>
Measurement norm_backward(const Gpu& gpu, Tensors& tensors, const Shape& shape) {
  const std::int64_t numel = shape.rows * shape.channels;
  std::conditional_t<kLayer, kernels::LayerNormBackward, kernels::RmsNormBackward> arguments;
  arguments.input = tensors.take_filled(numel, shape.type);
  arguments.rstd = static_cast<float*>(tensors.take_filled(shape.rows, DType::fp32));
  arguments.gain = tensors.take_filled(shape.channels, shape.type);
  arguments.output_gradient = tensors.take_filled(numel, shape.type);
  arguments.residual_gradient = tensors.take_filled(numel, shape.type);
  arguments.input_gradient = tensors.take(numel * bytes_of(shape.type));
  arguments.gain_gradient = tensors.take(shape.channels * bytes_of(shape.type));
  std::int64_t workspace = 0;
  if constexpr (kLayer) {
    arguments.mean = static_cast<float*>(tensors.take_filled(shape.rows, DType::fp32));
    arguments.bias_gradient = tensors.take(shape.channels * bytes_of(shape.type));
    workspace = kernels::layer_norm_backward_workspace_bytes(shape, {1, DeviceType::cuda});
  } else {
    workspace = kernels::rms_norm_backward_workspace_bytes(shape, {1, DeviceType::cuda});
  }
  const auto call = [shape, arguments, context = tensors.context(workspace)] {
    if constexpr (kLayer)
      kernels::layer_norm_backward(context, shape, arguments);
    else
      kernels::rms_norm_backward(context, shape, arguments);
  };
  return beside_copy(gpu, tensors, norm_expected(shape.channels), norm_bytes(shape, kLayer ? 2 : 1),
                     [&gpu, call] { return gpu.seconds_of(call); });
}

double operations_of(const kernels::MatmulShape& s) {
  return 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
}

// A matrix product on tensors of its own.
std::function<void()> product_of(Tensors& tensors, const kernels::MatmulShape& s) {
  const auto numel = [](std::int64_t rows, std::int64_t columns, std::int64_t leading) {
    return rows * (leading > 0 ? leading : columns);
  };
  void* const a =
      tensors.take_filled(s.transpose_a ? numel(s.k, s.m, s.lda) : numel(s.m, s.k, s.lda), s.input_type);
  void* const b =
      tensors.take_filled(s.transpose_b ? numel(s.n, s.k, s.ldb) : numel(s.k, s.n, s.ldb), s.input_type);
  void* const c = tensors.take(numel(s.m, s.n, s.ldc) * bytes_of(s.output_type));
  const ComputeContext context = tensors.context(kernels::matmul_workspace_bytes(s, {1, DeviceType::cuda}));
  return [=] { kernels::matmul(context, s, a, b, nullptr, c); };
}

// A kernel that must do so many operations, beside a matrix product of as many.
Measurement beside_product(const Gpu& gpu, Tensors& tensors, double operations,
                           const kernels::MatmulShape& product, std::function<void()> kernel) {
  return {.work = operations * 1e-12,
          .unit = "TFLOP/s",
          .limit = [&gpu, share = operations / operations_of(product),
                    call = product_of(tensors, product)] { return share * gpu.seconds_of(call); },
          .kernel = [&gpu, call = std::move(kernel)] { return gpu.seconds_of(call); }};
}

// A linear layer forward, beside the product that a GPU is fastest at. No ratio is expected.
Measurement linear(const Gpu& gpu, Tensors& tensors, const kernels::MatmulShape& layer, std::int64_t square) {
  const kernels::MatmulShape product{.m = square,
                                     .n = square,
                                     .k = square,
                                     .transpose_b = true,
                                     .input_type = layer.input_type,
                                     .output_type = layer.output_type};
  return beside_product(gpu, tensors, operations_of(layer), product, product_of(tensors, layer));
}

// The matrix products inside a head: the first, or all three. Rows are padded to whole vectors, and those of
// gradients lie where their logits did, as the op's do.
std::vector<kernels::MatmulShape> products_of(const kernels::CrossEntropyShape& shape, bool backward) {
  const std::int64_t stride = round_up(shape.vocabulary, 64);
  const std::int64_t gradient_stride = stride * 4 / bytes_of(shape.type);
  std::vector<kernels::MatmulShape> products = {kernels::logits_shape(shape, shape.rows, stride)};
  if (backward) {
    products.push_back(kernels::input_gradient_shape(shape, shape.rows, gradient_stride));
    products.push_back(kernels::weight_gradient_shape(shape, shape.rows, 0.0f, gradient_stride));
  }
  return products;
}

// One of them, beside the same where the vocabulary is a multiple of 64. No ratio is expected.
Measurement head_product(const Gpu& gpu, Tensors& tensors, kernels::CrossEntropyShape head,
                         std::size_t which) {
  const kernels::MatmulShape product = products_of(head, true)[which];
  head.vocabulary = round_up(head.vocabulary, 64);
  return beside_product(gpu, tensors, operations_of(product), products_of(head, true)[which],
                        product_of(tensors, product));
}

// The op less its products is what reads the logits once and, in backward, writes their gradient.
Measurement cross_entropy(const Gpu& gpu, Tensors& tensors, const kernels::CrossEntropyShape& shape,
                          bool backward) {
  void* const input = tensors.take_filled(shape.rows * shape.channels, shape.type);
  void* const weight = tensors.take_filled(shape.vocabulary * shape.channels, shape.type);
  const kernels::CrossEntropyForwardBackward arguments{
      .input = input,
      .weight = weight,
      .targets = tensors.take_targets(shape.rows, shape.vocabulary),
      .losses = tensors.floats(shape.rows),
      .total = static_cast<kernels::CrossEntropyLoss*>(tensors.take(sizeof(kernels::CrossEntropyLoss))),
      .input_gradient = tensors.take(shape.rows * shape.channels * bytes_of(shape.type)),
      .weight_gradient = tensors.take(shape.vocabulary * shape.channels * bytes_of(shape.type))};
  const ComputeContext context =
      tensors.context(kernels::cross_entropy_workspace_bytes(shape, {1, DeviceType::cuda}));
  const auto call = [=] {
    if (backward)
      kernels::cross_entropy_forward_backward(context, shape, arguments);
    else
      kernels::cross_entropy_forward(context, shape, input, weight, arguments.targets, arguments.losses,
                                     arguments.total);
  };
  const std::int64_t each = 4 + (backward ? bytes_of(shape.type) : 0);
  std::vector<std::function<void()>> products;
  for (const kernels::MatmulShape& product : products_of(shape, backward))
    products.push_back(product_of(tensors, product));
  return beside_copy(gpu, tensors, 0.85, shape.rows * shape.vocabulary * each, [&gpu, call, products] {
    return gpu.seconds_of(call) - gpu.seconds_of([&] {
      for (const auto& product : products) product();
    });
  });
}

// Measures one rank's columns of a vocabulary. Statistics read the logits. Gradients read them, too, and take
// their place.
Measurement softmax(const Gpu& gpu, Tensors& tensors, const kernels::SoftmaxShape& shape, bool gradients) {
  const std::int64_t stride = kernels::logits_stride(shape, DeviceType::cuda);
  auto* const logits = static_cast<float*>(tensors.take_filled(shape.rows * stride, DType::fp32));
  const std::int32_t* const targets = tensors.take_targets(shape.rows, shape.vocabulary);
  auto* const statistics = reinterpret_cast<kernels::SoftmaxStatistics*>(
      tensors.take_filled(shape.ranks * shape.rows * 3, DType::fp32));
  float* const losses = tensors.floats(shape.rows);
  const std::int64_t each = 4 + (gradients ? bytes_of(shape.type) : 0);
  return beside_copy(
      gpu, tensors, 0.0, shape.rows * shape.columns * each, [=, &gpu, context = tensors.context()] {
        return gpu.seconds_of([&] {
          if (gradients)
            kernels::softmax_gradients(
                context, shape,
                {.statistics = statistics, .targets = targets, .logits = logits, .losses = losses});
          else
            kernels::softmax_statistics(context, shape, logits, targets, statistics);
        });
      });
}

// What follows a sum over ranks: reads fp32 and writes the type.
Measurement finish_sum(const Gpu& gpu, Tensors& tensors, const kernels::SumShape& shape) {
  const std::int64_t numel = shape.rows * shape.channels;
  const auto* const sum = static_cast<const float*>(tensors.take_filled(numel, DType::fp32));
  const void* const bias = tensors.take_filled(shape.channels, shape.type);
  void* const output = tensors.take(numel * bytes_of(shape.type));
  return beside_copy(gpu, tensors, 0.0, numel * (4 + bytes_of(shape.type)),
                     [=, &gpu, context = tensors.context()] {
                       return gpu.seconds_of([&] { kernels::finish_sum(context, shape, sum, bias, output); });
                     });
}

Measurement attention(const Gpu& gpu, Tensors& tensors, const kernels::AttentionShape& shape, bool backward) {
  const std::int64_t rows = shape.batch * shape.sequence;
  const std::int64_t packed = rows * shape.qkv_channels(), out = rows * shape.channels;
  const Target target{1, DeviceType::cuda};
  const ComputeContext context =
      tensors.context(std::max(kernels::attention_forward_workspace_bytes(shape, target),
                               kernels::attention_backward_workspace_bytes(shape, target)));
  const void* qkv = tensors.take_filled(packed, shape.type);
  void* const output = tensors.take(out * bytes_of(shape.type));
  float* const log_sum_exp = tensors.floats(shape.batch * shape.heads * shape.sequence);
  const kernels::AttentionBackward arguments{.qkv = qkv,
                                             .output = output,
                                             .log_sum_exp = log_sum_exp,
                                             .output_gradient = tensors.take_filled(out, shape.type),
                                             .qkv_gradient = tensors.take(packed * bytes_of(shape.type))};
  kernels::attention_forward(context, shape, qkv, output, log_sum_exp);  // what backward starts from
  const auto call = [=] {
    if (backward)
      kernels::attention_backward(context, shape, arguments);
    else
      kernels::attention_forward(context, shape, qkv, output, log_sum_exp);
  };
  // Below the diagonal: two products of every query with every key forward, five backward.
  const auto pairs_of_rows = static_cast<double>(shape.batch * shape.heads * shape.sequence) *
                             static_cast<double>(shape.sequence + 1) / 2;
  const double operations =
      (backward ? 5 : 2) * 2.0 * pairs_of_rows * static_cast<double>(shape.head_channels());
  const kernels::MatmulShape product{.m = shape.channels * 4,
                                     .n = shape.channels * 4,
                                     .k = shape.channels * 4,
                                     .transpose_b = true,
                                     .input_type = shape.type,
                                     .output_type = shape.type};
  return beside_product(gpu, tensors, operations, product, call);
}

using Make = std::function<Measurement(const Gpu&, Tensors&)>;

void add(bool small, const std::string& name, const Make& make) {
  benchmark::RegisterBenchmark(name.c_str(), [make](benchmark::State& state) { run(state, make); })
      ->Iterations(small ? kSmallRounds : kRounds)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

// Each moves a gigabyte or so, beyond any cache; with `small` some kilobytes.
void add_all(bool small) {
  const auto rows = [&](std::int64_t count) { return small ? 8 : count; };
  for (const DType type : {DType::bf16, DType::fp32}) {
    const std::int64_t numel = small ? 1 << 10 : 1 << 26;
    add(small, fmt::format("adamw/{}/{}", name_of(type), numel),
        [=](const Gpu& gpu, Tensors& tensors) { return adamw(gpu, tensors, type, numel); });
  }
  for (const std::int64_t numel :
       {std::int64_t{7'087'872}, std::int64_t{1} << 28})  // a block of GPT-2's; beyond caches
    add(small, fmt::format("sum_of_squares/{}", numel),
        [=](const Gpu& gpu, Tensors& tensors) { return sum_of_squares(gpu, tensors, small ? 3000 : numel); });
  add(small, "ordered_chain/8", [=](const Gpu& gpu, Tensors& tensors) {
    return ordered_chain(gpu, tensors, small ? 3000 : std::int64_t{1} << 26);
  });
  add(small, "column_sum/3072", [rows = rows(std::int64_t{1} << 17)](const Gpu& gpu, Tensors& tensors) {
    return column_sum(gpu, tensors, rows, 3072);
  });
  for (const bool backward : {false, true}) {
    const kernels::SwigluShape mlp{.rows = rows(std::int64_t{1} << 13), .hidden = 14336, .type = DType::bf16};
    add(small, fmt::format("swiglu_{}/{}", backward ? "backward" : "forward", mlp.hidden),
        [=](const Gpu& gpu, Tensors& tensors) { return swiglu(gpu, tensors, mlp, backward); });
  }
  kernels::EmbeddingShape table{.batch = 512,
                                .sequence = 1024,
                                .channels = 768,
                                .vocabulary = 50257,
                                .positions = 1024,
                                .type = DType::bf16};
  if (small) table.batch = 1, table.sequence = 8, table.vocabulary = 100;
  add(small, fmt::format("embedding_forward/{}", table.channels),
      [=](const Gpu& gpu, Tensors& tensors) { return embedding_forward(gpu, tensors, table); });
  for (const std::int64_t channels : {768, 4096, 8192}) {
    const kernels::LayerNormShape layer{
        .rows = rows((std::int64_t{1} << 27) / channels), .channels = channels, .type = DType::bf16};
    const kernels::RmsNormShape rms{.rows = layer.rows, .channels = channels, .type = DType::bf16};
    add(small, fmt::format("layer_norm_forward/{}", channels),
        [=](const Gpu& gpu, Tensors& tensors) { return norm_forward<true>(gpu, tensors, layer); });
    add(small, fmt::format("layer_norm_backward/{}", channels),
        [=](const Gpu& gpu, Tensors& tensors) { return norm_backward<true>(gpu, tensors, layer); });
    add(small, fmt::format("rms_norm_forward/{}", channels),
        [=](const Gpu& gpu, Tensors& tensors) { return norm_forward<false>(gpu, tensors, rms); });
    add(small, fmt::format("rms_norm_backward/{}", channels),
        [=](const Gpu& gpu, Tensors& tensors) { return norm_backward<false>(gpu, tensors, rms); });
  }
  const auto type = DType::bf16;
  const kernels::SumShape sum{.rows = rows(std::int64_t{1} << 17), .channels = 768, .type = type};
  add(small, fmt::format("finish_sum/{}", sum.channels),
      [=](const Gpu& gpu, Tensors& tensors) { return finish_sum(gpu, tensors, sum); });
  for (const bool gradients : {false, true}) {
    const kernels::SoftmaxShape half{.rows = rows(4096),
                                     .columns = small ? 500 : 25129,
                                     .vocabulary = small ? 999 : 50257,
                                     .ranks = 2,
                                     .type = type};
    add(small, fmt::format("softmax_{}/{}", gradients ? "gradients" : "statistics", half.columns),
        [=](const Gpu& gpu, Tensors& tensors) { return softmax(gpu, tensors, half, gradients); });
  }
  for (const std::int64_t channels : {768, 4096})
    add(small, fmt::format("linear/{}x{}", 4 * channels, channels), [=](const Gpu& gpu, Tensors& tensors) {
      const kernels::MatmulShape layer{.m = rows(std::int64_t{1} << 14),
                                       .n = small ? 64 : 4 * channels,
                                       .k = small ? 64 : channels,
                                       .transpose_b = true,
                                       .input_type = type,
                                       .output_type = type};
      return linear(gpu, tensors, layer, small ? 64 : 8192);
    });
  constexpr std::string_view kHeadProducts[] = {"logits", "input_gradient", "weight_gradient"};
  for (std::size_t which = 0; which < std::size(kHeadProducts); ++which) {
    const kernels::CrossEntropyShape head{
        .rows = rows(4096), .channels = 768, .vocabulary = small ? 1001 : 50257, .type = type};
    add(small, fmt::format("head_{}/{}", kHeadProducts[which], head.vocabulary),
        [=](const Gpu& gpu, Tensors& tensors) { return head_product(gpu, tensors, head, which); });
  }
  for (const bool backward : {false, true}) {
    // Few channels, so that the products take less than the rest; one chunk, beyond any cache.
    const kernels::CrossEntropyShape head{.rows = rows(4096),
                                          .channels = 64,
                                          .vocabulary = small ? 1000 : 50257,
                                          .type = DType::bf16,
                                          .chunk_bytes = std::int64_t{1} << 31};
    add(small, backward ? "cross_entropy_forward_backward" : "cross_entropy_forward",
        [=](const Gpu& gpu, Tensors& tensors) { return cross_entropy(gpu, tensors, head, backward); });
    // Work enough that starting it takes less.
    for (kernels::AttentionShape shape :
         {kernels::AttentionShape{.batch = 32, .sequence = 1024, .channels = 768, .heads = 12},
          kernels::AttentionShape{
              .batch = 1, .sequence = 4096, .channels = 2048, .heads = 16, .kv_heads = 4}}) {
      shape.type = DType::bf16;
      if (small) shape.batch = 1, shape.sequence = 8, shape.channels = shape.heads * 8;
      add(small,
          fmt::format("attention_{}/{}x{}", backward ? "backward" : "forward", shape.heads,
                      shape.kv_heads_or_heads()),
          [=](const Gpu& gpu, Tensors& tensors) { return attention(gpu, tensors, shape, backward); });
    }
  }
}

int run_all(int argc, char** argv) {
  bool small = false;
  std::vector<char*> arguments;
  for (int i = 0; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--small")
      small = true;
    else
      arguments.push_back(argv[i]);
  }
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  add_all(small);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  if (const std::string missing = read_cuda_machine().unusable; !missing.empty()) {
    fmt::print("skipped: no GPU can be used: {}\n", missing);
    return 0;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::run_all(argc, argv); }
