// A block saves, per token: query, key and value, the output of attention, the residual stream between the
// halves, what the MLP's activation sees, and the log-sum-exp of each head; for GPT-2 that is 3 + 1 + 1 + 4
// times `channels`. Recomputable are the outputs of both norms and of the activation, 1 + 1 + 4: making them
// reads and writes memory once, while the matmuls around it take tens of operations per element. Backward
// overwrites them with their gradients.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "kernels/kernels.h"
#include "src/nn/regions.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"

namespace tessera::nn {
namespace {

// Where each layer's parameters begin among the module's: a gain or weight, then the bias where there is one.
struct Indices {
  std::size_t norm1, qkv, projection, norm2, up, down, count;

  explicit Indices(const TransformerConfig& config) {
    const std::size_t norm = parameters_of(config.norm);
    const std::size_t linear = config.biases ? 2 : 1;
    norm1 = 0;
    qkv = norm1 + norm;
    projection = qkv + linear;
    norm2 = projection + linear;
    up = norm2 + norm;
    down = up + linear;
    count = down + linear;
  }
};

std::int64_t qkv_channels(const TransformerConfig& config) {
  return config.channels + 2 * config.kv_heads * (config.channels / config.heads);
}

// Columns that the MLP's activation sees.
std::int64_t up_channels(const TransformerConfig& config) {
  return config.mlp == MlpKind::swiglu ? 2 * config.hidden : config.hidden;
}

// The shapes of every op in a block, for one microbatch.
struct Shapes {
  kernels::AttentionShape attention;
  kernels::RotaryShape rotary;
  kernels::LinearShape qkv, projection, up, down;
  std::int64_t rows = 0;
  // Of [tokens, columns]:
  std::int64_t narrow_bytes = 0;  // channels
  std::int64_t qkv_bytes = 0;     // query, key and value
  std::int64_t up_bytes = 0;      // what the activation sees
  std::int64_t hidden_bytes = 0;  // what it gives

  Shapes(const TransformerConfig& config, const BatchShape& batch) : rows(batch.tokens()) {
    const auto linear = [&](std::int64_t in, std::int64_t out) {
      return kernels::LinearShape{.rows = rows, .in = in, .out = out, .type = config.type};
    };
    attention = {.batch = batch.sequences,
                 .sequence = batch.length,
                 .channels = config.channels,
                 .heads = config.heads,
                 .type = config.type,
                 .kv_heads = config.kv_heads};
    rotary = {.batch = batch.sequences,
              .sequence = batch.length,
              .heads = config.heads + config.kv_heads,
              .head_channels = config.channels / config.heads,
              .row_numel = qkv_channels(config),
              .type = config.type};
    qkv = linear(config.channels, qkv_channels(config));
    projection = linear(config.channels, config.channels);
    up = linear(config.channels, up_channels(config));
    down = linear(config.hidden, config.channels);
    const std::int64_t column_bytes = rows * bytes_of(config.type);
    narrow_bytes = column_bytes * config.channels;
    qkv_bytes = column_bytes * qkv.out;
    up_bytes = column_bytes * up.out;
    hidden_bytes = column_bytes * config.hidden;
  }
};

// Offsets in `saved`.
struct Saved {
  std::int64_t qkv = 0;            // [tokens, qkv channels], rotated
  std::int64_t attention = 0;      // [tokens, channels]
  std::int64_t log_sum_exp = 0;    // [sequences, heads, length] fp32
  std::int64_t middle = 0;         // [tokens, channels]: the input plus the attention half
  std::int64_t preactivation = 0;  // [tokens, up channels]
  std::int64_t bytes = 0;

  explicit Saved(const Shapes& shapes) {
    Regions regions;
    qkv = regions.take(shapes.qkv_bytes);
    attention = regions.take(shapes.narrow_bytes);
    log_sum_exp = regions.take(shapes.rows * shapes.attention.heads * 4);
    middle = regions.take(shapes.narrow_bytes);
    preactivation = regions.take(shapes.up_bytes);
    bytes = regions.bytes();
  }
};

// Offsets of what backward makes besides. `attention` and `qkv` lie over `up`, which it is done with when it
// comes to attention.
struct Gradients {
  std::int64_t up = 0;         // [tokens, up channels]
  std::int64_t attention = 0;  // [tokens, channels]
  std::int64_t qkv = 0;        // [tokens, qkv channels]
  std::int64_t bytes = 0;

  explicit Gradients(const Shapes& shapes) {
    Regions of_mlp, of_attention;
    up = of_mlp.take(shapes.up_bytes);
    attention = of_attention.take(shapes.narrow_bytes);
    qkv = of_attention.take(shapes.qkv_bytes);
    bytes = std::max(of_mlp.bytes(), of_attention.bytes());
  }
};

// Whether they lie over `hidden`, rather than in the workspace: GELU's gradient takes the place of its
// output.
bool gradients_over_hidden(const TransformerConfig& config) { return config.mlp == MlpKind::gelu; }

std::int64_t workspace_bytes(const TransformerConfig& config, const Shapes& shapes) {
  return gradients_over_hidden(config) ? 0 : Gradients(shapes).bytes;
}

// Offsets in `recomputable`.
struct Recomputable {
  struct NormOutput {
    std::int64_t normed = 0;  // [tokens, channels], then its gradient
    std::int64_t mean = 0;    // [tokens] fp32, as is the next
    std::int64_t rstd = 0;
  };
  NormOutput norm1, norm2;
  std::int64_t hidden = 0;  // [tokens, hidden]: output of the activation, then its gradient
  std::int64_t bytes = 0;

  Recomputable(const TransformerConfig& config, const Shapes& shapes) {
    Regions regions;
    for (NormOutput* norm : {&norm1, &norm2}) {
      norm->normed = regions.take(shapes.narrow_bytes);
      if (config.norm.kind == NormKind::layer) norm->mean = regions.take(shapes.rows * 4);
      norm->rstd = regions.take(shapes.rows * 4);
    }
    hidden =
        regions.take(gradients_over_hidden(config) ? std::max(shapes.hidden_bytes, Gradients(shapes).bytes)
                                                   : shapes.hidden_bytes);
    bytes = regions.bytes();
  }
};

NormPass norm_of(const TransformerConfig& config, const Shapes& shapes) {
  return {.norm = config.norm, .rows = shapes.rows, .channels = config.channels, .type = config.type};
}

std::int64_t scratch_bytes(const TransformerConfig& config, const Shapes& shapes, const Target& target) {
  return std::max({kernels::linear_workspace_bytes(shapes.qkv, target),
                   kernels::linear_workspace_bytes(shapes.projection, target),
                   kernels::linear_workspace_bytes(shapes.up, target),
                   kernels::linear_workspace_bytes(shapes.down, target),
                   kernels::attention_forward_workspace_bytes(shapes.attention, target),
                   kernels::attention_backward_workspace_bytes(shapes.attention, target),
                   config.rotary.empty() ? 0 : kernels::rotary_workspace_bytes(shapes.rotary),
                   norm_workspace_bytes(norm_of(config, shapes), target)});
}

// One pass over one microbatch: the addresses of every tensor, and the steps the passes are made of.
class BlockPass {
 public:
  BlockPass(const TransformerConfig& config, const ModuleContext& context, const Shapes& shapes)
      : BlockPass(config, context, shapes, Saved(shapes), Recomputable(config, shapes), Gradients(shapes)) {}

  // x -> middle, norm2 of middle.
  void attend(const void* input) const {
    norm_forward(context_, compute_, norm1_.pass, indices_.norm1, {.input = input, .output = norm1_.normed});
    linear(shapes_.qkv, norm1_.normed, indices_.qkv, qkv_);
    if (!config_.rotary.empty())
      kernels::rotary_forward(compute_, shapes_.rotary, config_.rotary.data(), qkv_);
    kernels::attention_forward(compute_, shapes_.attention, qkv_, attention_, log_sum_exp_);
    linear(shapes_.projection, attention_, indices_.projection, middle_);
    norm_forward(context_, compute_, norm2_.pass, indices_.norm2,
                 {.input = middle_, .residual = input, .sum = middle_, .output = norm2_.normed});
  }

  void expand() const { linear(shapes_.up, norm2_.normed, indices_.up, preactivation_); }

  // Apart from the matmul before it, so that its bits do not depend on whether that is repeated.
  void activate() const {
    if (config_.mlp == MlpKind::swiglu)
      kernels::swiglu_forward(compute_, swiglu(), preactivation_, hidden_);
    else
      kernels::gelu_forward(compute_, config_.type, shapes_.rows * config_.hidden, preactivation_, hidden_);
  }

  // All that is recomputable, from what is saved: the same kernels on the same values.
  void repeat(const void* input) const {
    norm_forward(context_, compute_, norm1_.pass, indices_.norm1, {.input = input, .output = norm1_.normed});
    norm_forward(context_, compute_, norm2_.pass, indices_.norm2,
                 {.input = middle_, .output = norm2_.normed});
    activate();
  }

  void contract(void* output) const {
    linear(shapes_.down, hidden_, indices_.down, output);
    kernels::add(compute_, config_.type, shapes_.rows * config_.channels, output, middle_, output);
  }

  // gradient: of the block's output -> of `middle`.
  void mlp_backward(const void* output_gradient, void* middle_gradient) const {
    parameter_gradients(shapes_.down, hidden_, output_gradient, indices_.down);
    input_gradient(shapes_.down, output_gradient, indices_.down, hidden_);
    activate_backward();
    parameter_gradients(shapes_.up, norm2_.normed, up_gradient_, indices_.up);
    input_gradient(shapes_.up, up_gradient_, indices_.up, norm2_.normed);
    normalise_backward(norm2_, indices_.norm2, middle_, output_gradient, middle_gradient);
  }

  // gradient: of `middle` -> of the block's input, in place.
  void attention_backward(const void* input, void* gradient) const {
    parameter_gradients(shapes_.projection, attention_, gradient, indices_.projection);
    input_gradient(shapes_.projection, gradient, indices_.projection, attention_gradient_);
    kernels::attention_backward(compute_, shapes_.attention,
                                {.qkv = qkv_,
                                 .output = attention_,
                                 .log_sum_exp = log_sum_exp_,
                                 .output_gradient = attention_gradient_,
                                 .qkv_gradient = qkv_gradient_});
    if (!config_.rotary.empty())
      kernels::rotary_backward(compute_, shapes_.rotary, config_.rotary.data(), qkv_gradient_);
    parameter_gradients(shapes_.qkv, norm1_.normed, qkv_gradient_, indices_.qkv);
    input_gradient(shapes_.qkv, qkv_gradient_, indices_.qkv, norm1_.normed);
    normalise_backward(norm1_, indices_.norm1, input, gradient, gradient);
  }

 private:
  // A norm's output, and its statistics in `pass`.
  struct NormOutput {
    NormPass pass;
    void* normed = nullptr;

    NormOutput(const TransformerConfig& config, const Shapes& shapes, void* base,
               const Recomputable::NormOutput& offsets)
        : pass(norm_of(config, shapes)), normed(at(base, offsets.normed)) {
      pass.mean = at<float>(base, offsets.mean);
      pass.rstd = at<float>(base, offsets.rstd);
    }
  };

  BlockPass(const TransformerConfig& config, const ModuleContext& context, const Shapes& shapes,
            const Saved& saved, const Recomputable& again, const Gradients& gradients)
      : config_(config),
        context_(context),
        shapes_(shapes),
        indices_(config),
        compute_(compute_context(context, workspace_bytes(config, shapes))),
        norm1_(config, shapes, context.recomputable, again.norm1),
        norm2_(config, shapes, context.recomputable, again.norm2),
        qkv_(at(context.saved, saved.qkv)),
        attention_(at(context.saved, saved.attention)),
        log_sum_exp_(at<float>(context.saved, saved.log_sum_exp)),
        middle_(at(context.saved, saved.middle)),
        preactivation_(at(context.saved, saved.preactivation)),
        hidden_(at(context.recomputable, again.hidden)) {
    void* base = gradients_over_hidden(config) ? hidden_ : context.workspace;
    up_gradient_ = at(base, gradients.up);
    attention_gradient_ = at(base, gradients.attention);
    qkv_gradient_ = at(base, gradients.qkv);
  }

  kernels::SwigluShape swiglu() const {
    return {.rows = shapes_.rows, .hidden = config_.hidden, .type = config_.type};
  }

  // hidden_ -> up_gradient_.
  void activate_backward() const {
    if (config_.mlp == MlpKind::swiglu)
      kernels::swiglu_backward(compute_, swiglu(), preactivation_, hidden_, up_gradient_);
    else
      kernels::gelu_backward(compute_, config_.type, shapes_.rows * config_.hidden, preactivation_, hidden_,
                             up_gradient_);
  }

  void linear(const kernels::LinearShape& shape, const void* input, std::size_t weight, void* output) const {
    kernels::linear_forward(compute_, shape, input, context_.parameters[weight],
                            config_.biases ? context_.parameters[weight + 1] : nullptr, output);
  }

  void parameter_gradients(const kernels::LinearShape& shape, const void* input, const void* output_gradient,
                           std::size_t weight) const {
    linear_parameter_gradients(context_, compute_,
                               {.shape = shape,
                                .input = input,
                                .output_gradient = output_gradient,
                                .weight = weight,
                                .bias = config_.biases});
  }

  void input_gradient(const kernels::LinearShape& shape, const void* output_gradient, std::size_t weight,
                      void* gradient) const {
    kernels::linear_backward_input(compute_, shape, output_gradient, context_.parameters[weight], 0.0f,
                                   gradient);
  }

  // From the gradient in `norm.normed`; `residual_gradient` came past the norm and is added.
  void normalise_backward(const NormOutput& norm, std::size_t gain, const void* input,
                          const void* residual_gradient, void* gradient) const {
    norm_backward(context_, compute_, norm.pass, gain,
                  {.input = input,
                   .output_gradient = norm.normed,
                   .residual_gradient = residual_gradient,
                   .input_gradient = gradient});
  }

  const TransformerConfig& config_;
  const ModuleContext& context_;
  const Shapes& shapes_;
  Indices indices_;
  kernels::ComputeContext compute_;
  NormOutput norm1_, norm2_;
  void* qkv_;
  void* attention_;
  float* log_sum_exp_;
  void* middle_;
  void* preactivation_;
  void* hidden_;
  void* up_gradient_ = nullptr;
  void* attention_gradient_ = nullptr;
  void* qkv_gradient_ = nullptr;
};

class Block final : public Module {
 public:
  Block(const TransformerConfig& config, std::int64_t index) : config_(config), index_(index) {}

  std::vector<ParameterSpec> parameters() const override {
    const std::int64_t channels = config_.channels;
    std::vector<ParameterSpec> specs;
    const auto name = [&](const char* part) { return fmt::format("block.{}.{}", index_, part); };
    const auto add_linear = [&](const char* part, std::int64_t in, std::int64_t out) {
      specs.push_back(
          {.name = name(part) + ".weight", .shape = {out, in}, .dtype = config_.type, .group = kDecay});
      if (config_.biases)
        specs.push_back(
            {.name = name(part) + ".bias", .shape = {out}, .dtype = config_.type, .group = kNoDecay});
    };
    add_norm(config_.norm, name("norm1"), channels, config_.type, specs);
    add_linear("attention.qkv", channels, qkv_channels(config_));
    add_linear("attention.projection", channels, channels);
    add_norm(config_.norm, name("norm2"), channels, config_.type, specs);
    add_linear(config_.mlp == MlpKind::swiglu ? "mlp.gate_up" : "mlp.up", channels, up_channels(config_));
    add_linear("mlp.down", config_.hidden, channels);
    return specs;
  }

  std::vector<Initial> initials() const override {
    const Indices indices(config_);
    std::vector<Initial> initials(indices.count);  // zero, which the biases keep
    for (const std::size_t gain : {indices.norm1, indices.norm2})
      initials[gain] = {Initial::Kind::constant, 1.0};
    for (const std::size_t weight : {indices.qkv, indices.up})
      initials[weight] = {Initial::Kind::normal, config_.deviation};
    for (const std::size_t weight : {indices.projection, indices.down})
      initials[weight] = {Initial::Kind::normal, config_.residual_deviation};
    return initials;
  }

  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_batch(config_, shape);
    const Shapes shapes(config_, shape);
    const auto tokens = static_cast<double>(shape.tokens());
    const auto channels = static_cast<double>(config_.channels);
    const double all_pairs = tokens * static_cast<double>(shape.length);
    const double pairs = tokens * static_cast<double>(shape.length + 1) / 2;  // that the causal mask leaves
    const double pair_flops = 2.0 * 2.0 * channels;                           // a score, and a value's part
    // Of all matrices, with `channels` in the other dim; only the last one's product is never repeated.
    const auto columns = static_cast<double>(shapes.qkv.out + config_.channels + shapes.up.out);
    const double repeated = 2.0 * tokens * columns * channels + pairs * pair_flops;
    return {.activations = {.output_bytes = shapes.narrow_bytes,
                            .saved_bytes = Saved(shapes).bytes,
                            .recomputable_bytes = Recomputable(config_, shapes).bytes,
                            .workspace_bytes =
                                workspace_bytes(config_, shapes) + scratch_bytes(config_, shapes, target),
                            .reads_batch = false},
            .forward_flops = repeated + 2.0 * tokens * static_cast<double>(config_.hidden) * channels,
            .recompute_flops = repeated,
            .masked_flops = (all_pairs - pairs) * pair_flops};
  }

  void forward(const ModuleContext& context, const void* input, void* output) override {
    const Shapes shapes(config_, context.shape);
    const BlockPass pass(config_, context, shapes);
    if (context.selective) return pass.repeat(input);
    pass.attend(input);
    pass.expand();
    pass.activate();
    if (output != nullptr) pass.contract(output);
  }

  void backward(const ModuleContext& context, const void* input, const void* output_gradient,
                void* input_gradient) override {
    const Shapes shapes(config_, context.shape);
    const BlockPass pass(config_, context, shapes);
    pass.mlp_backward(output_gradient, input_gradient);
    pass.attention_backward(input, input_gradient);
  }

 private:
  TransformerConfig config_;
  std::int64_t index_;
};

}  // namespace

std::unique_ptr<Module> make_block(const TransformerConfig& config, std::int64_t index) {
  return std::make_unique<Block>(config, index);
}

}  // namespace tessera::nn
