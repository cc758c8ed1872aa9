#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "kernels/cross_entropy_chunks.h"
#include "kernels/kernels.h"
#include "src/nn/regions.h"
#include "src/nn/softmax_loss.h"
#include "src/nn/split_head.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"

namespace tessera::nn {
namespace {

constexpr std::size_t kGain = 0;  // the norm's first parameter; the weight follows its last

enum HeadValue : ValueId {
  kNorm,  // [tokens, channels]
  kMean,  // [tokens] fp32, as are the next two
  kRstd,
  kLosses,
  kNormGradient,  // [tokens, channels]
  kWeightSum      // [vocabulary, channels] fp32: the weight's gradient, where it is a sum over chunks
};
enum HeadPart { kEvaluateNorm, kEvaluateLoss, kTrainNorm, kTrainLoss, kNormBackward, kWeightGradient };

class Head final : public Module {
 public:
  explicit Head(const TransformerConfig& config) : config_(config) {}

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs;
    add_norm(config_.norm, "head.norm", config_.channels, config_.type, stream_gradient(config_), specs);
    specs.push_back({.name = "head.weight",
                     .shape = {config_.token_rows, config_.channels},
                     .dtype = config_.type,
                     .group = kDecay,
                     .tied_to = config_.tied ? "embed.token" : "",
                     .cut = {.dim = 0, .padded = true}});
    return specs;
  }

  std::vector<Initial> initials() const override {
    std::vector<Initial> initials;
    add_norm_initials(config_.norm, initials);
    initials.push_back(initial_of_tokens(config_));
    return initials;
  }

  // In training all work is left to backward, so that the logits are computed once.
  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_batch(config_, shape);
    if (target.tensor > 1) return {.activations = SplitHead(config_, shape, target).graph()};
    if (shape.cached > 0) return {.activations = logits_graph(shape, target)};
    const std::int64_t tokens = shape.tokens(), row_bytes = 4 * tokens;
    const kernels::CrossEntropyShape loss = loss_shape(shape, target.device);
    const std::int64_t loss_scratch = softmax_loss_workspace_bytes(loss, target);
    const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(config_.channels) *
                         static_cast<double>(config_.vocabulary);
    ModuleNeeds needs;
    UnitGraph& graph = needs.activations;
    graph.values = {
        {.name = "norm", .bytes = tokens * config_.channels * bytes_of(config_.type)},
        {.name = "norm.mean", .bytes = config_.norm.kind == NormKind::layer ? row_bytes : 0},
        {.name = "norm.rstd", .bytes = row_bytes},
        {.name = "losses", .bytes = row_bytes},
        {.name = "norm.gradient", .bytes = tokens * config_.channels * bytes_of(config_.type), .over = kNorm},
        {.name = "weight.sum",
         .bytes = loss.fp32_weight_gradient ? 4 * config_.vocabulary * config_.channels : 0,
         .only_if_read = true}};
    const int weight = static_cast<int>(weight_place());
    std::vector<int> of_norm(parameters_of(config_.norm));
    std::iota(of_norm.begin(), of_norm.end(), 0);
    graph.parts = {
        {.name = "norm", .reads = {kInput}, .writes = {kNorm, kMean, kRstd}, .evaluation_only = true},
        {.name = "loss",
         .reads = {kNorm, kBatch},
         .writes = {kLosses},
         .workspace_bytes = loss_scratch,
         .flops = flops,
         .evaluation_only = true},
        {.name = "norm",
         .pass = Pass::backward,
         .reads = {kInput},
         .writes = {kNorm, kMean, kRstd},
         .gradients = kNoGradients},
        {.name = "loss",
         .pass = Pass::backward,
         .reads = {kNorm, kBatch},
         .writes = {kLosses, kNormGradient},
         .gradients = std::vector<int>{weight},
         .workspace_bytes = loss_scratch,
         .flops = 2 * flops},
        {.name = "norm gradient",
         .pass = Pass::backward,
         .reads = {kInput, kMean, kRstd, kNormGradient},
         .writes = {kInputGradient},
         .gradients = of_norm,
         .workspace_bytes = norm_workspace_bytes(norm_of(shape), target)}};
    if (loss.fp32_weight_gradient) {
      graph.parts[kTrainLoss].writes.push_back(kWeightSum);
      graph.parts[kTrainLoss].gradients = kNoGradients;
      graph.parts.push_back({.name = "weight gradient",
                             .pass = Pass::backward,
                             .reads = {kWeightSum},
                             .gradients = std::vector<int>{weight}});
    }
    return needs;
  }

  std::string numerics(const BatchShape& shape, const Target& target) const override {
    const auto words = [&](std::int64_t rows, bool in_fp32) {
      return fmt::format("{}, logits and cross-entropy by {} rows{}{}", words_of(config_.norm), rows,
                         in_fp32 ? ", whose weight gradients are added in fp32" : "", words_of_ranks(target));
    };
    if (target.tensor > 1) {
      const SplitHead split(config_, shape, target);
      return words(split.chunk_rows(), split.sums());
    }
    const kernels::CrossEntropyShape loss = loss_shape(shape, target.device);
    return words(kernels::rows_per_chunk(loss, target.device), loss.fp32_weight_gradient);
  }

  void run(int part, const ModuleContext& context) override {
    if (context.tensor_ranks > 1) {
      const Target target(context.threads, context.device, context.tensor_ranks, context.exchange_chunks);
      return SplitHead(config_, context.shape, target).run(part, context);
    }
    const kernels::ComputeContext compute = compute_context(context);
    switch (part) {
      case kEvaluateNorm:
      case kTrainNorm:
        return norm_forward(context, compute, norm_pass(context), kGain,
                            {.input = context.value(kInput), .output = context.value(kNorm)});
      case kEvaluateLoss:
        return softmax_loss_evaluate(context, compute, loss(context));
      case kTrainLoss:
        softmax_loss_train(context, compute, loss(context), context.value(kNormGradient));
        if (!loss_shape(context.shape, context.device).fp32_weight_gradient) zero_padding(context, compute);
        return;
      case kWeightGradient:
        add_weight_sum(context, compute);
        return zero_padding(context, compute);
      default:
        return norm_backward(context, compute, norm_pass(context), kGain,
                             {.input = context.value(kInput),
                              .output_gradient = context.value(kNormGradient),
                              .input_gradient = context.value(kInputGradient)});
    }
  }

 private:
  // The norm and the logits of one row, where the next token is all that is wanted.
  UnitGraph logits_graph(const BatchShape& shape, const Target& target) const {
    const std::int64_t row_bytes = 4 * shape.tokens();
    UnitGraph graph;
    graph.forward_only = true;
    graph.values = {{.name = "norm", .bytes = shape.tokens() * config_.channels * bytes_of(config_.type)},
                    {.name = "norm.mean", .bytes = config_.norm.kind == NormKind::layer ? row_bytes : 0},
                    {.name = "norm.rstd", .bytes = row_bytes},
                    {.name = "losses", .bytes = 0}};
    graph.parts = {{.name = "norm", .reads = {kInput}, .writes = {kNorm, kMean, kRstd}},
                   {.name = "logits",
                    .reads = {kNorm, kBatch},
                    .workspace_bytes = logits_row_workspace_bytes(loss_shape(shape, target.device), target),
                    .flops = 2.0 * static_cast<double>(config_.channels * config_.vocabulary)}};
    return graph;
  }

  std::size_t weight_place() const { return kGain + parameters_of(config_.norm); }

  void add_weight_sum(const ModuleContext& context, const kernels::ComputeContext& compute) const {
    if (context.gradients[weight_place()] == nullptr) return;
    kernels::add_sum(compute,
                     {.rows = config_.vocabulary, .channels = config_.channels, .type = config_.type},
                     static_cast<const float*>(context.value(kWeightSum)), context.betas[weight_place()],
                     context.gradients[weight_place()]);
  }

  // The gradient of the rows behind the vocabulary, which the loss does not see.
  void zero_padding(const ModuleContext& context, const kernels::ComputeContext& compute) const {
    const std::size_t weight = weight_place();
    const std::int64_t rows = config_.token_rows - config_.vocabulary;
    if (rows == 0 || context.gradients[weight] == nullptr || context.betas[weight] != 0.0F) return;
    kernels::fill(
        compute, config_.type, rows * config_.channels, 0.0F,
        at(context.gradients[weight], config_.vocabulary * config_.channels * bytes_of(config_.type)));
  }

  NormPass norm_of(const BatchShape& shape) const {
    return {.norm = config_.norm, .rows = shape.tokens(), .channels = config_.channels, .type = config_.type};
  }

  NormPass norm_pass(const ModuleContext& context) const {
    NormPass pass = norm_of(context.shape);
    pass.mean = static_cast<float*>(context.value(kMean));
    pass.rstd = static_cast<float*>(context.value(kRstd));
    return pass;
  }

  kernels::CrossEntropyShape loss_shape(const BatchShape& batch, DeviceType device) const {
    kernels::CrossEntropyShape shape = {.rows = batch.tokens(),
                                        .channels = config_.channels,
                                        .vocabulary = config_.vocabulary,
                                        .type = config_.type,
                                        .chunk_bytes = config_.logits_bytes};
    shape.fp32_weight_gradient = sums_in_fp32(config_.type, kernels::chunk_count(shape, device));
    return shape;
  }

  SoftmaxLoss loss(const ModuleContext& context) const {
    return {.shape = loss_shape(context.shape, context.device),
            .input = context.value(kNorm),
            .targets = static_cast<const std::int32_t*>(context.batch) + context.shape.tokens(),
            .weight = weight_place(),
            .losses = static_cast<float*>(context.value(kLosses)),
            .weight_sum = static_cast<float*>(context.value(kWeightSum))};
  }

  TransformerConfig config_;
};

}  // namespace

std::unique_ptr<Module> make_head(const TransformerConfig& config) { return std::make_unique<Head>(config); }

}  // namespace tessera::nn
