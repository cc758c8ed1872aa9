#include <fmt/format.h>

#include <algorithm>

#include "kernels/cross_entropy_chunks.h"
#include "kernels/kernels.h"
#include "src/nn/regions.h"
#include "src/nn/softmax_loss.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"

namespace tessera::nn {
namespace {

constexpr std::size_t kGain = 0;  // the norm's first parameter; the weight follows its last

class Head final : public Module {
 public:
  explicit Head(const TransformerConfig& config) : config_(config) {}

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs;
    add_norm(config_.norm, "head.norm", config_.channels, config_.type, specs);
    specs.push_back({.name = "head.weight",
                     .shape = {config_.vocabulary, config_.channels},
                     .dtype = config_.type,
                     .group = kDecay,
                     .tied_to = config_.tied ? "embed.token" : ""});
    return specs;
  }

  std::vector<Initial> initials() const override {
    std::vector<Initial> initials;
    add_norm_initials(config_.norm, initials);
    initials.push_back({Initial::Kind::normal, config_.deviation});
    return initials;
  }

  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_batch(config_, shape);
    const std::int64_t scratch = std::max(softmax_loss_workspace_bytes(loss_shape(shape), target),
                                          norm_workspace_bytes(norm_of(shape), target));
    return {.activations = {.workspace_bytes = Workspace(config_, shape).bytes + scratch},
            .forward_flops = 2.0 * static_cast<double>(shape.tokens()) *
                             static_cast<double>(config_.channels) * static_cast<double>(config_.vocabulary)};
  }

  std::string numerics(const BatchShape& shape, const Target& target) const override {
    return fmt::format("{}, logits and cross-entropy by {} rows", words_of(config_.norm),
                       kernels::rows_per_chunk(loss_shape(shape), target.device));
  }

  // In training all work is left to backward, so that the logits are computed once.
  void forward(const ModuleContext& context, const void* input, void*) override {
    if (context.kind != StepKind::evaluate) return;
    const Workspace own(config_, context.shape);
    const kernels::ComputeContext compute = compute_context(context, own.bytes);
    normalise(context, compute, own, input);
    softmax_loss_evaluate(context, compute, loss(context, own));
  }

  void backward(const ModuleContext& context, const void* input, const void*, void* input_gradient) override {
    const Workspace own(config_, context.shape);
    const kernels::ComputeContext compute = compute_context(context, own.bytes);
    normalise(context, compute, own, input);
    void* normed = at(context.workspace, own.normed);
    softmax_loss_train(context, compute, loss(context, own), normed);
    norm_backward(context, compute, norm_pass(context, own), kGain,
                  {.input = input, .output_gradient = normed, .input_gradient = input_gradient});
  }

 private:
  // The module's own regions; the kernels' scratch follows.
  struct Workspace {
    std::int64_t normed = 0;  // [tokens, channels], then its gradient
    std::int64_t mean = 0;    // [tokens] fp32, as are the next two
    std::int64_t rstd = 0;
    std::int64_t losses = 0;
    std::int64_t bytes = 0;

    Workspace(const TransformerConfig& config, const BatchShape& shape) {
      Regions regions;
      normed = regions.take(shape.tokens() * config.channels * bytes_of(config.type));
      if (config.norm.kind == NormKind::layer) mean = regions.take(shape.tokens() * 4);
      rstd = regions.take(shape.tokens() * 4);
      losses = regions.take(shape.tokens() * 4);
      bytes = regions.bytes();
    }
  };

  NormPass norm_of(const BatchShape& shape) const {
    return {.norm = config_.norm, .rows = shape.tokens(), .channels = config_.channels, .type = config_.type};
  }

  NormPass norm_pass(const ModuleContext& context, const Workspace& own) const {
    NormPass pass = norm_of(context.shape);
    pass.mean = at<float>(context.workspace, own.mean);
    pass.rstd = at<float>(context.workspace, own.rstd);
    return pass;
  }

  kernels::CrossEntropyShape loss_shape(const BatchShape& shape) const {
    return {.rows = shape.tokens(),
            .channels = config_.channels,
            .vocabulary = config_.vocabulary,
            .type = config_.type,
            .chunk_bytes = config_.logits_bytes};
  }

  void normalise(const ModuleContext& context, const kernels::ComputeContext& compute, const Workspace& own,
                 const void* input) const {
    norm_forward(context, compute, norm_pass(context, own), kGain,
                 {.input = input, .output = at(context.workspace, own.normed)});
  }

  SoftmaxLoss loss(const ModuleContext& context, const Workspace& own) const {
    return {.shape = loss_shape(context.shape),
            .input = at(context.workspace, own.normed),
            .targets = static_cast<const std::int32_t*>(context.batch) + context.shape.tokens(),
            .weight = kGain + parameters_of(config_.norm),
            .losses = at<float>(context.workspace, own.losses)};
  }

  TransformerConfig config_;
};

}  // namespace

std::unique_ptr<Module> make_head(const TransformerConfig& config) { return std::make_unique<Head>(config); }

}  // namespace tessera::nn
