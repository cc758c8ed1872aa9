// A transformer block: its parameters, its values, and the parts that its passes are made of.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "src/nn/block_run.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"

namespace tessera::nn {
namespace {

// What is kept for each token is query, key and value, the output of attention, the residual stream between
// the two halves, the input of the MLP's activation function, and the log-sum-exp of each head: for GPT-2 3 +
// 1 + 1 + 4 times `channels`. Recomputable are the outputs of both norms and of the activation function, 1 +
// 1 + 4 times `channels`: to compute these reads and writes memory once, while the matmuls around them take
// tens of operations per element.
IdVector<ValueSpec> block_values(const TransformerConfig& config, const BlockShapes& shapes) {
  const std::int64_t row_bytes = shapes.rows * 4;
  const std::int64_t mean_bytes = config.norm.kind == NormKind::layer ? row_bytes : 0;
  const std::int64_t dropped_bytes = config.dropout > 0 ? shapes.narrow_bytes : 0;
  using enum Keep;
  IdVector<ValueSpec> values = {
      {"norm1", shapes.narrow_bytes, recomputable},
      {"norm1.mean", mean_bytes, recomputable},
      {"norm1.rstd", row_bytes, recomputable},
      {"qkv", shapes.qkv_bytes, saved},
      {"attention", shapes.narrow_bytes, saved},
      {"log_sum_exp", row_bytes * shapes.attention.heads, saved},
      {"attention_branch", shapes.narrow_bytes},
      {"middle", shapes.narrow_bytes, saved},
      {"norm2", shapes.narrow_bytes, recomputable},
      {"norm2.mean", mean_bytes, recomputable},
      {"norm2.rstd", row_bytes, recomputable},
      {"preactivation", shapes.up_bytes, saved},
      {"hidden", shapes.hidden_bytes, recomputable},
      {"mlp_branch.gradient", dropped_bytes},
      {"hidden.gradient", shapes.hidden_bytes, pass, kHidden},
      {"preactivation.gradient", shapes.up_bytes},
      {"norm2.gradient", shapes.narrow_bytes, pass, kNorm2},
      {"middle.gradient", shapes.narrow_bytes},
      {"attention_branch.gradient", dropped_bytes, pass, kNorm2Gradient},
      {"attention.gradient", shapes.narrow_bytes},
      {"qkv.gradient", shapes.qkv_bytes},
      {"norm1.gradient", shapes.narrow_bytes, pass, kNorm1},
  };
  // GELU's gradient takes the place of its output's.
  if (config.mlp == MlpKind::gelu) values[ValueId{kPreactivationGradient}].over = kHiddenGradient;
  return values;
}

// A row of the table of parts, and what runs it.
struct BlockPart {
  const char* name;
  Pass pass;
  void (BlockRun::*run)() const;
  std::vector<ValueId> reads, writes;
  std::vector<int> gradients;  // of these parameters
  std::int64_t workspace_bytes;
  double flops;
};

class Block final : public Module {
 public:
  Block(const TransformerConfig& config, std::int64_t index) : config_(config), index_(index) {
    for (const BlockPart& part : parts(config, BlockShapes(config, {}), 1)) runs_.push_back(part.run);
  }

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
    const BlockIndices indices(config_);
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
    ModuleNeeds needs;
    needs.activations.output_bytes = shapes.narrow_bytes;
    needs.activations.values = block_values(config_, shapes);
    for (BlockPart& part : parts(config_, shapes, target)) {
      needs.activations.parts.push_back({.name = part.name,
                                         .pass = part.pass,
                                         .reads = std::move(part.reads),
                                         .writes = std::move(part.writes),
                                         .workspace_bytes = part.workspace_bytes,
                                         .flops = part.flops});
      if (part.pass == Pass::backward) needs.activations.parts.back().gradients = std::move(part.gradients);
    }
    const auto tokens = static_cast<double>(shape.tokens());
    needs.masked_flops = tokens * static_cast<double>(shape.length - 1) / 2 * pair_flops(config_);
    return needs;
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

  void run(int part, const ModuleContext& context) override {
    const BlockShapes shapes(config_, context.shape);
    const BlockRun run(config_, context, shapes);
    (run.*runs_[part])();
  }

 private:
  // The operations of a score and of a value's part, for each pair of tokens.
  static double pair_flops(const TransformerConfig& config) {
    return 2.0 * 2.0 * static_cast<double>(config.channels);
  }

  // In the order in which they run. Each is a kernel or a few, so that memory is given up as soon as it can
  // be, and the gradients of parameters stand apart.
  static std::vector<BlockPart> parts(const TransformerConfig& config, const BlockShapes& shapes,
                                      const Target& target) {
    using enum Pass;
    const bool drops = config.dropout > 0;
    const ValueId mlp_branch = mlp_branch_gradient(config);
    const ValueId attention_branch = attention_branch_gradient(config);
    const BlockIndices of(config);
    // The places of a layer's parameters, of which the first is given.
    const auto places = [](std::size_t first, bool two) {
      const auto place = static_cast<int>(first);
      return two ? std::vector<int>{place, place + 1} : std::vector<int>{place};
    };
    const auto linear = [&](std::size_t weight) { return places(weight, config.biases); };
    const auto norm = [&](std::size_t gain) { return places(gain, config.norm.kind == NormKind::layer); };
    const auto flops = [&](const kernels::LinearShape& shape) {
      return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.in) *
             static_cast<double>(shape.out);
    };
    const auto scratch = [&](const kernels::LinearShape& shape) {
      return kernels::linear_workspace_bytes(shape, target);
    };
    const std::int64_t norm_scratch = norm_workspace_bytes(norm_of(config, shapes), target);
    const std::int64_t rotary_scratch =
        config.rotary.empty() ? 0 : kernels::rotary_workspace_bytes(shapes.rotary);
    kernels::AttentionShape evaluated = shapes.attention;  // without dropout, which may choose another kernel
    evaluated.dropout = {};
    const std::int64_t attention_scratch =
        std::max(kernels::attention_forward_workspace_bytes(shapes.attention, target),
                 kernels::attention_forward_workspace_bytes(evaluated, target));
    // The operations for the pairs of tokens that the causal mask leaves.
    const double attention_flops = static_cast<double>(shapes.rows) *
                                   static_cast<double>(shapes.attention.sequence + 1) / 2 *
                                   pair_flops(config);

    using Run = BlockRun;
    std::vector<BlockPart> all = {
        {"norm1", forward, &Run::norm1, {kInput}, {kNorm1, kMean1, kRstd1}, {}, 0, 0},
        {"qkv",
         forward,
         &Run::qkv,
         {kNorm1},
         {kQkv},
         {},
         std::max(scratch(shapes.qkv), rotary_scratch),
         flops(shapes.qkv)},
        {"attention",
         forward,
         &Run::attention,
         {kQkv},
         {kAttention, kLogSumExp},
         {},
         attention_scratch,
         attention_flops},
        {"projection",
         forward,
         &Run::projection,
         {kAttention},
         {kAttentionBranch},
         {},
         scratch(shapes.projection),
         flops(shapes.projection)},
        {"norm2",
         forward,
         &Run::norm2,
         {kInput, kAttentionBranch},
         {kMiddle, kNorm2, kMean2, kRstd2},
         {},
         0,
         0},
        {"norm2 again", recompute, &Run::norm2_again, {kMiddle}, {kNorm2, kMean2, kRstd2}, {}, 0, 0},
        {"up", forward, &Run::up, {kNorm2}, {kPreactivation}, {}, scratch(shapes.up), flops(shapes.up)},
        {"activation", forward, &Run::activation, {kPreactivation}, {kHidden}, {}, 0, 0},
        {"down",
         forward,
         &Run::down,
         {kHidden, kMiddle},
         {kOutput},
         {},
         scratch(shapes.down),
         flops(shapes.down)},
    };
    const auto add = [&](BlockPart part) { all.push_back(std::move(part)); };
    if (drops)
      add({"mlp dropout", backward, &Run::drop_mlp_gradient, {kOutputGradient}, {mlp_branch}, {}, 0, 0});
    add({"down parameters",
         backward,
         &Run::down_parameters,
         {kHidden, mlp_branch},
         {},
         linear(of.down),
         scratch(shapes.down),
         flops(shapes.down)});
    add({"down",
         backward,
         &Run::down_gradient,
         {mlp_branch},
         {kHiddenGradient},
         {},
         scratch(shapes.down),
         flops(shapes.down)});
    add({"activation",
         backward,
         &Run::activation_gradient,
         {kPreactivation, kHiddenGradient},
         {kPreactivationGradient},
         {},
         0,
         0});
    add({"up parameters",
         backward,
         &Run::up_parameters,
         {kNorm2, kPreactivationGradient},
         {},
         linear(of.up),
         scratch(shapes.up),
         flops(shapes.up)});
    add({"up",
         backward,
         &Run::up_gradient,
         {kPreactivationGradient},
         {kNorm2Gradient},
         {},
         scratch(shapes.up),
         flops(shapes.up)});
    add({"norm2",
         backward,
         &Run::norm2_gradient,
         {kMiddle, kMean2, kRstd2, kNorm2Gradient, kOutputGradient},
         {kMiddleGradient},
         norm(of.norm2),
         norm_scratch,
         0});
    if (drops)
      add({"attention dropout",
           backward,
           &Run::drop_attention_gradient,
           {kMiddleGradient},
           {attention_branch},
           {},
           0,
           0});
    add({"projection parameters",
         backward,
         &Run::projection_parameters,
         {kAttention, attention_branch},
         {},
         linear(of.projection),
         scratch(shapes.projection),
         flops(shapes.projection)});
    add({"projection",
         backward,
         &Run::projection_gradient,
         {attention_branch},
         {kAttentionGradient},
         {},
         scratch(shapes.projection),
         flops(shapes.projection)});
    add({"attention",
         backward,
         &Run::attention_gradient,
         {kQkv, kAttention, kLogSumExp, kAttentionGradient},
         {kQkvGradient},
         {},
         std::max(kernels::attention_backward_workspace_bytes(shapes.attention, target), rotary_scratch),
         2 * attention_flops});
    add({"qkv parameters",
         backward,
         &Run::qkv_parameters,
         {kNorm1, kQkvGradient},
         {},
         linear(of.qkv),
         scratch(shapes.qkv),
         flops(shapes.qkv)});
    add({"qkv",
         backward,
         &Run::qkv_gradient,
         {kQkvGradient},
         {kNorm1Gradient},
         {},
         scratch(shapes.qkv),
         flops(shapes.qkv)});
    add({"norm1",
         backward,
         &Run::norm1_gradient,
         {kInput, kMean1, kRstd1, kNorm1Gradient, kMiddleGradient},
         {kInputGradient},
         norm(of.norm1),
         norm_scratch,
         0});
    return all;
  }

  TransformerConfig config_;
  std::int64_t index_;
  IdVector<void (BlockRun::*)() const> runs_;  // [part]
};

}  // namespace

std::unique_ptr<Module> make_block(const TransformerConfig& config, std::int64_t index) {
  return std::make_unique<Block>(config, index);
}

}  // namespace tessera::nn
