// A transformer block: its parameters, and the steps its passes are made of (block_memory.h: where tensors
// lie).
#include <fmt/format.h>
#include <xxhash.h>

#include <initializer_list>

#include "kernels/kernels.h"
#include "src/nn/block_memory.h"
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

// One pass over one microbatch: the addresses of every tensor, and the steps the passes are made of.
class BlockPass {
 public:
  BlockPass(const TransformerConfig& config, const ModuleContext& context, const BlockShapes& shapes)
      : BlockPass(config, context, shapes, BlockSaved(shapes), BlockRecomputable(config, shapes),
                  BlockGradients(shapes)) {}

  // x -> middle, norm2 of middle.
  void attend(const void* input) const {
    norm_forward(context_, compute_, norm1_.pass, indices_.norm1, {.input = input, .output = norm1_.normed});
    linear(shapes_.qkv, norm1_.normed, indices_.qkv, qkv_);
    if (!config_.rotary.empty())
      kernels::rotary_forward(compute_, shapes_.rotary, config_.rotary.data(), qkv_);
    kernels::attention_forward(compute_, attention_shape_, qkv_, attention_, log_sum_exp_);
    linear(shapes_.projection, attention_, indices_.projection, middle_);
    drop(kAttentionBranch, middle_, middle_);
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
    drop(kMlpBranch, output, output);
    kernels::add(compute_, config_.type, shapes_.rows * config_.channels, output, middle_, output);
  }

  // gradient: of the block's output -> of `middle`.
  void mlp_backward(const void* output_gradient, void* middle_gradient) const {
    const void* branch = dropped(kMlpBranch, output_gradient, middle_gradient);
    parameter_gradients(shapes_.down, hidden_, branch, indices_.down);
    input_gradient(shapes_.down, branch, indices_.down, hidden_);
    activate_backward();
    parameter_gradients(shapes_.up, norm2_.normed, up_gradient_, indices_.up);
    input_gradient(shapes_.up, up_gradient_, indices_.up, norm2_.normed);
    normalise_backward(norm2_, indices_.norm2, middle_, output_gradient, middle_gradient);
  }

  // gradient: of `middle` -> of the block's input, in place.
  void attention_backward(const void* input, void* gradient) const {
    const void* branch = dropped(kAttentionBranch, gradient, norm2_.normed);
    parameter_gradients(shapes_.projection, attention_, branch, indices_.projection);
    input_gradient(shapes_.projection, branch, indices_.projection, attention_gradient_);
    kernels::attention_backward(compute_, attention_shape_,
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

    NormOutput(const TransformerConfig& config, const BlockShapes& shapes, void* base,
               const BlockRecomputable::NormOutput& offsets)
        : pass(norm_of(config, shapes)), normed(at(base, offsets.normed)) {
      pass.mean = at<float>(base, offsets.mean);
      pass.rstd = at<float>(base, offsets.rstd);
    }
  };

  BlockPass(const TransformerConfig& config, const ModuleContext& context, const BlockShapes& shapes,
            const BlockSaved& saved, const BlockRecomputable& again, const BlockGradients& gradients)
      : config_(config),
        context_(context),
        shapes_(shapes),
        attention_shape_(shapes.attention),
        indices_(config),
        compute_(compute_context(context, gradient_workspace_bytes(config, shapes))),
        norm1_(config, shapes, context.recomputable, again.norm1),
        norm2_(config, shapes, context.recomputable, again.norm2),
        qkv_(at(context.saved, saved.qkv)),
        attention_(at(context.saved, saved.attention)),
        log_sum_exp_(at<float>(context.saved, saved.log_sum_exp)),
        middle_(at(context.saved, saved.middle)),
        preactivation_(at(context.saved, saved.preactivation)),
        hidden_(at(context.recomputable, again.hidden)) {
    attention_shape_.dropout = dropout_of(context, config.attention_dropout, 0);
    void* base = gradients_over_hidden(config) ? hidden_ : context.workspace;
    up_gradient_ = at(base, gradients.up);
    attention_gradient_ = at(base, gradients.attention);
    qkv_gradient_ = at(base, gradients.qkv);
  }

  // What ends in the residual stream; numbers its dropout, behind the attention's heads.
  enum Branch : std::uint8_t { kAttentionBranch, kMlpBranch };

  // output = dropout(tensor), [tokens, channels].
  void drop(Branch branch, const void* tensor, void* output) const {
    drop_stream(config_, context_, compute_, config_.heads + branch, tensor, output);
  }

  // A branch's gradient, which is that of the stream where nothing is dropped; else in `free`.
  const void* dropped(Branch branch, const void* gradient, void* free) const {
    if (config_.dropout == 0) return gradient;
    drop(branch, gradient, free);
    return free;
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
  const BlockShapes& shapes_;
  kernels::AttentionShape attention_shape_;
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
    const BlockShapes shapes(config_, shape);
    const auto tokens = static_cast<double>(shape.tokens());
    const auto channels = static_cast<double>(config_.channels);
    const double all_pairs = tokens * static_cast<double>(shape.length);
    const double pairs = tokens * static_cast<double>(shape.length + 1) / 2;  // that the causal mask leaves
    const double pair_flops = 2.0 * 2.0 * channels;                           // a score, and a value's part
    // Of all matrices, with `channels` in the other dim; only the last one's product is never repeated.
    const auto columns = static_cast<double>(shapes.qkv.out + config_.channels + shapes.up.out);
    const double repeated = 2.0 * tokens * columns * channels + pairs * pair_flops;
    return {.activations = {.output_bytes = shapes.narrow_bytes,
                            .saved_bytes = BlockSaved(shapes).bytes,
                            .recomputable_bytes = BlockRecomputable(config_, shapes).bytes,
                            .workspace_bytes = gradient_workspace_bytes(config_, shapes) +
                                               scratch_bytes(config_, shapes, target),
                            .reads_batch = false},
            .forward_flops = repeated + 2.0 * tokens * static_cast<double>(config_.hidden) * channels,
            .recompute_flops = repeated,
            .masked_flops = (all_pairs - pairs) * pair_flops};
  }

  std::string numerics(const BatchShape&, const Target&) const override {
    const std::vector<float>& rotary = config_.rotary;
    const std::string rotated = rotary.empty() ? ""
                                               : fmt::format(", rotary frequencies {:016x}",
                                                             XXH3_64bits(rotary.data(), 4 * rotary.size()));
    return fmt::format("{}, attention of {} heads, {} of keys and values{}, {}{}{}", words_of(config_.norm),
                       config_.heads, config_.kv_heads, rotated,
                       config_.mlp == MlpKind::gelu ? "gelu" : "swiglu",
                       words_of_dropout("dropout", config_.dropout),
                       words_of_dropout("attention dropout", config_.attention_dropout));
  }

  void forward(const ModuleContext& context, const void* input, void* output) override {
    const BlockShapes shapes(config_, context.shape);
    const BlockPass pass(config_, context, shapes);
    if (context.selective) return pass.repeat(input);
    pass.attend(input);
    pass.expand();
    pass.activate();
    if (output != nullptr) pass.contract(output);
  }

  void backward(const ModuleContext& context, const void* input, const void* output_gradient,
                void* input_gradient) override {
    const BlockShapes shapes(config_, context.shape);
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
