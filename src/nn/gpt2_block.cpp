// A block keeps, per token and in units of `channels` elements: query, key and value 3, attention 1, the
// residual stream between the halves 1, the pre-activation 4: 9, and the log-sum-exp of each head. The
// outputs of both LayerNorms and of the GELU, 6 more, are computed again in backward: that reads and writes
// memory once, while the matmuls around it take tens of operations per element. A workspace of 5 serves both
// passes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels/kernels.h"
#include "src/nn/gpt2_modules.h"
#include "src/nn/regions.h"
#include "src/nn/support.h"

namespace tessera::nn {
namespace {

enum Index : std::size_t {
  kNorm1Gain,
  kNorm1Bias,
  kQkvWeight,
  kQkvBias,
  kProjectionWeight,
  kProjectionBias,
  kNorm2Gain,
  kNorm2Bias,
  kUpWeight,
  kUpBias,
  kDownWeight,
  kDownBias,
};

// The shapes of every op in a block, for one microbatch.
struct Shapes {
  kernels::LayerNormShape norm;
  kernels::AttentionShape attention;
  kernels::LinearShape qkv, projection, up, down;
  std::int64_t narrow_bytes = 0;  // of [tokens, channels]
};

Shapes shapes_of(const Gpt2Config& config, DType type, const BatchShape& batch) {
  const std::int64_t rows = batch.tokens();
  const std::int64_t channels = config.channels;
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return kernels::LinearShape{.rows = rows, .in = in, .out = out, .type = type};
  };
  return {.norm = {.rows = rows, .channels = channels, .type = type},
          .attention = {.batch = batch.sequences,
                        .sequence = batch.length,
                        .channels = channels,
                        .heads = config.heads,
                        .type = type},
          .qkv = linear(channels, 3 * channels),
          .projection = linear(channels, channels),
          .up = linear(channels, 4 * channels),
          .down = linear(4 * channels, channels),
          .narrow_bytes = rows * channels * bytes_of(type)};
}

// Offsets in `saved`.
struct Saved {
  std::int64_t qkv = 0;            // [tokens, 3 channels]
  std::int64_t attention = 0;      // [tokens, channels]
  std::int64_t log_sum_exp = 0;    // [sequences, heads, length] fp32
  std::int64_t middle = 0;         // [tokens, channels]: the input plus the attention half
  std::int64_t preactivation = 0;  // [tokens, 4 channels]
  std::int64_t bytes = 0;

  explicit Saved(const Shapes& shapes) {
    Regions regions;
    qkv = regions.take(3 * shapes.narrow_bytes);
    attention = regions.take(shapes.narrow_bytes);
    log_sum_exp = regions.take(shapes.norm.rows * shapes.attention.heads * 4);
    middle = regions.take(shapes.narrow_bytes);
    preactivation = regions.take(4 * shapes.narrow_bytes);
    bytes = regions.bytes();
  }
};

// Offsets in the workspace; the kernels' scratch follows. `attention_gradient` and `qkv_gradient` lie over
// `wide`, which backward is done with when it comes to attention.
struct Workspace {
  std::int64_t normed = 0;  // [tokens, channels]: output of a LayerNorm, then its gradient
  std::int64_t mean = 0;    // [tokens] fp32, as is the next
  std::int64_t rstd = 0;
  std::int64_t wide = 0;                // [tokens, 4 channels]: output of the GELU, then its gradient
  std::int64_t attention_gradient = 0;  // [tokens, channels]
  std::int64_t qkv_gradient = 0;        // [tokens, 3 channels]
  std::int64_t bytes = 0;

  explicit Workspace(const Shapes& shapes) {
    Regions regions;
    normed = regions.take(shapes.narrow_bytes);
    mean = regions.take(shapes.norm.rows * 4);
    rstd = regions.take(shapes.norm.rows * 4);
    attention_gradient = wide = regions.take(shapes.narrow_bytes);
    qkv_gradient = regions.take(3 * shapes.narrow_bytes);
    bytes = regions.bytes();
  }
};

std::int64_t scratch_bytes(const Shapes& shapes, int threads) {
  return std::max({kernels::linear_workspace_bytes(shapes.qkv, threads),
                   kernels::linear_workspace_bytes(shapes.projection, threads),
                   kernels::linear_workspace_bytes(shapes.up, threads),
                   kernels::linear_workspace_bytes(shapes.down, threads),
                   kernels::attention_forward_workspace_bytes(shapes.attention, threads),
                   kernels::attention_backward_workspace_bytes(shapes.attention, threads),
                   kernels::layer_norm_backward_workspace_bytes(shapes.norm, threads)});
}

// One pass over one microbatch: the addresses of every tensor, and the steps the passes are made of.
class BlockPass {
 public:
  BlockPass(const ModuleContext& context, const Shapes& shapes)
      : BlockPass(context, shapes, Saved(shapes), Workspace(shapes)) {}

  // x -> middle, norm2 of middle in `normed_`.
  void attend(const void* input) const {
    normalise(input, kNorm1Gain);
    linear(shapes_.qkv, normed_, kQkvWeight, qkv_);
    kernels::attention_forward(compute_, shapes_.attention, qkv_, attention_, log_sum_exp_);
    linear(shapes_.projection, attention_, kProjectionWeight, middle_);
    kernels::layer_norm_forward(compute_, shapes_.norm,
                                {.input = middle_,
                                 .residual = input,
                                 .sum = middle_,
                                 .gain = context_.parameters[kNorm2Gain],
                                 .bias = context_.parameters[kNorm2Bias],
                                 .output = normed_,
                                 .mean = mean_,
                                 .rstd = rstd_});
  }

  void expand() const { linear(shapes_.up, normed_, kUpWeight, preactivation_); }

  void contract(void* output) const {
    activate();
    linear(shapes_.down, wide_, kDownWeight, output);
    kernels::add(compute_, shapes_.norm.type, shapes_.norm.rows * shapes_.norm.channels, output, middle_,
                 output);
  }

  // gradient: of the block's output -> of `middle`.
  void mlp_backward(const void* output_gradient, void* middle_gradient) const {
    activate();
    parameter_gradients(shapes_.down, wide_, output_gradient, kDownWeight);
    input_gradient(shapes_.down, output_gradient, kDownWeight, wide_);
    kernels::gelu_backward(compute_, shapes_.up.type, shapes_.up.rows * shapes_.up.out, preactivation_, wide_,
                           wide_);
    normalise(middle_, kNorm2Gain);
    parameter_gradients(shapes_.up, normed_, wide_, kUpWeight);
    input_gradient(shapes_.up, wide_, kUpWeight, normed_);
    normalise_backward(middle_, output_gradient, middle_gradient, kNorm2Gain);
  }

  // gradient: of `middle` -> of the block's input, in place.
  void attention_backward(const void* input, void* gradient) const {
    parameter_gradients(shapes_.projection, attention_, gradient, kProjectionWeight);
    input_gradient(shapes_.projection, gradient, kProjectionWeight, attention_gradient_);
    kernels::attention_backward(compute_, shapes_.attention,
                                {.qkv = qkv_,
                                 .output = attention_,
                                 .log_sum_exp = log_sum_exp_,
                                 .output_gradient = attention_gradient_,
                                 .qkv_gradient = qkv_gradient_});
    normalise(input, kNorm1Gain);
    parameter_gradients(shapes_.qkv, normed_, qkv_gradient_, kQkvWeight);
    input_gradient(shapes_.qkv, qkv_gradient_, kQkvWeight, normed_);
    normalise_backward(input, gradient, gradient, kNorm1Gain);
  }

 private:
  BlockPass(const ModuleContext& context, const Shapes& shapes, const Saved& saved, const Workspace& own)
      : context_(context),
        shapes_(shapes),
        compute_(compute_context(context, own.bytes)),
        qkv_(at(context.saved, saved.qkv)),
        attention_(at(context.saved, saved.attention)),
        log_sum_exp_(at<float>(context.saved, saved.log_sum_exp)),
        middle_(at(context.saved, saved.middle)),
        preactivation_(at(context.saved, saved.preactivation)),
        normed_(at(context.workspace, own.normed)),
        mean_(at<float>(context.workspace, own.mean)),
        rstd_(at<float>(context.workspace, own.rstd)),
        wide_(at(context.workspace, own.wide)),
        attention_gradient_(at(context.workspace, own.attention_gradient)),
        qkv_gradient_(at(context.workspace, own.qkv_gradient)) {}

  // Two ops rather than the fused one, because a recompute pass wants only the first, and its bits must be
  // those of forward.
  void activate() const {
    kernels::gelu_forward(compute_, shapes_.up.type, shapes_.up.rows * shapes_.up.out, preactivation_, wide_);
  }

  void linear(const kernels::LinearShape& shape, const void* input, std::size_t weight, void* output) const {
    kernels::linear_forward(compute_, shape, input, context_.parameters[weight],
                            context_.parameters[weight + 1], output);
  }

  void parameter_gradients(const kernels::LinearShape& shape, const void* input, const void* output_gradient,
                           std::size_t weight) const {
    linear_parameter_gradients(
        context_, compute_,
        {.shape = shape, .input = input, .output_gradient = output_gradient, .weight = weight});
  }

  void input_gradient(const kernels::LinearShape& shape, const void* output_gradient, std::size_t weight,
                      void* gradient) const {
    kernels::linear_backward_input(compute_, shape, output_gradient, context_.parameters[weight], 0.0f,
                                   gradient);
  }

  // Into `normed_`, with the statistics that normalise_backward() then reads.
  void normalise(const void* input, std::size_t gain) const {
    kernels::layer_norm_forward(compute_, shapes_.norm,
                                {.input = input,
                                 .gain = context_.parameters[gain],
                                 .bias = context_.parameters[gain + 1],
                                 .output = normed_,
                                 .mean = mean_,
                                 .rstd = rstd_});
  }

  // From the gradient in `normed_`; `residual_gradient` came past the norm and is added.
  void normalise_backward(const void* input, const void* residual_gradient, void* gradient,
                          std::size_t gain) const {
    layer_norm_gradients(context_, compute_, shapes_.norm,
                         {.input = input,
                          .mean = mean_,
                          .rstd = rstd_,
                          .output_gradient = normed_,
                          .residual_gradient = residual_gradient,
                          .input_gradient = gradient},
                         gain);
  }

  const ModuleContext& context_;
  const Shapes& shapes_;
  kernels::ComputeContext compute_;
  void* qkv_;
  void* attention_;
  float* log_sum_exp_;
  void* middle_;
  void* preactivation_;
  void* normed_;
  float* mean_;
  float* rstd_;
  void* wide_;
  void* attention_gradient_;
  void* qkv_gradient_;
};

class Gpt2Block final : public Module {
 public:
  Gpt2Block(const Gpt2Config& config, DType type, std::int64_t index)
      : config_(config), type_(type), index_(index) {}

  std::vector<ParameterSpec> parameters() const override {
    const std::int64_t channels = config_.channels;
    std::vector<ParameterSpec> specs;
    const auto add = [&](const char* name, Shape shape) {
      const int group = shape.size() > 1 ? kDecay : kNoDecay;
      specs.push_back({.name = fmt::format("block.{}.{}", index_, name),
                       .shape = std::move(shape),
                       .dtype = type_,
                       .group = group});
    };
    add("norm1.gain", {channels});
    add("norm1.bias", {channels});
    add("attention.qkv.weight", {3 * channels, channels});
    add("attention.qkv.bias", {3 * channels});
    add("attention.projection.weight", {channels, channels});
    add("attention.projection.bias", {channels});
    add("norm2.gain", {channels});
    add("norm2.bias", {channels});
    add("mlp.up.weight", {4 * channels, channels});
    add("mlp.up.bias", {4 * channels});
    add("mlp.down.weight", {channels, 4 * channels});
    add("mlp.down.bias", {channels});
    return specs;
  }

  std::vector<Initial> initials() const override {
    std::vector<Initial> initials(kDownBias + 1);  // zero, which the biases keep
    const double residual = kGpt2Deviation / std::sqrt(2.0 * static_cast<double>(config_.layers));
    for (const Index gain : {kNorm1Gain, kNorm2Gain}) initials[gain] = {Initial::Kind::constant, 1.0};
    for (const Index weight : {kQkvWeight, kUpWeight})
      initials[weight] = {Initial::Kind::normal, kGpt2Deviation};
    for (const Index weight : {kProjectionWeight, kDownWeight})
      initials[weight] = {Initial::Kind::normal, residual};
    return initials;
  }

  ModuleNeeds needs(const BatchShape& shape, int threads) const override {
    check_gpt2_shape(config_, shape);
    const Shapes shapes = shapes_of(config_, type_, shape);
    const auto tokens = static_cast<double>(shape.tokens());
    const auto channels = static_cast<double>(config_.channels);
    const double pairs = tokens * static_cast<double>(shape.length + 1) / 2;  // that the causal mask leaves
    return {.activations = {.output_bytes = shapes.narrow_bytes,
                            .saved_bytes = Saved(shapes).bytes,
                            .workspace_bytes = Workspace(shapes).bytes + scratch_bytes(shapes, threads)},
            .forward_flops = 2.0 * tokens * 12.0 * channels * channels + 2.0 * pairs * 2.0 * channels};
  }

  void forward(const ModuleContext& context, const void* input, void* output) override {
    const Shapes shapes = shapes_of(config_, type_, context.shape);
    const BlockPass pass(context, shapes);
    pass.attend(input);
    pass.expand();
    if (output != nullptr) pass.contract(output);
  }

  void backward(const ModuleContext& context, const void* input, const void* output_gradient,
                void* input_gradient) override {
    const Shapes shapes = shapes_of(config_, type_, context.shape);
    const BlockPass pass(context, shapes);
    pass.mlp_backward(output_gradient, input_gradient);
    pass.attention_backward(input, input_gradient);
  }

 private:
  Gpt2Config config_;
  DType type_;
  std::int64_t index_;
};

}  // namespace

std::unique_ptr<Module> make_gpt2_block(const Gpt2Config& config, DType type, std::int64_t index) {
  return std::make_unique<Gpt2Block>(config, type, index);
}

}  // namespace tessera::nn
