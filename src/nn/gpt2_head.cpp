#include <algorithm>

#include "kernels/kernels.h"
#include "src/nn/gpt2_modules.h"
#include "src/nn/regions.h"
#include "src/nn/softmax_loss.h"
#include "src/nn/support.h"

namespace tessera::nn {
namespace {

enum Index : std::size_t { kGain, kBias, kWeight };

class Gpt2Head final : public Module {
 public:
  Gpt2Head(const Gpt2Config& config, DType type) : config_(config), type_(type) {}

  std::vector<ParameterSpec> parameters() const override {
    const Shape channels = {config_.channels};
    return {{.name = "head.norm.gain", .shape = channels, .dtype = type_, .group = kNoDecay},
            {.name = "head.norm.bias", .shape = channels, .dtype = type_, .group = kNoDecay},
            {.name = "head.weight",
             .shape = {config_.vocabulary, config_.channels},
             .dtype = type_,
             .group = kDecay,
             .tied_to = "embed.token"}};
  }

  std::vector<Initial> initials() const override {
    return {{Initial::Kind::constant, 1.0}, {Initial::Kind::constant, 0.0}, {}};
  }

  ModuleNeeds needs(const BatchShape& shape, int threads) const override {
    check_gpt2_shape(config_, shape);
    const std::int64_t scratch =
        std::max(softmax_loss_workspace_bytes(loss_shape(shape), threads),
                 kernels::layer_norm_backward_workspace_bytes(norm_shape(shape), threads));
    return {.activations = {.workspace_bytes = workspace(shape).bytes + scratch},
            .forward_flops = 2.0 * static_cast<double>(shape.tokens()) *
                             static_cast<double>(config_.channels) * static_cast<double>(config_.vocabulary)};
  }

  // In training all work is left to backward, so that the logits are computed once.
  void forward(const ModuleContext& context, const void* input, void*) override {
    if (context.kind != StepKind::evaluate) return;
    const Workspace own = workspace(context.shape);
    normalise(context, own, input);
    softmax_loss_evaluate(context, compute_context(context, own.bytes), loss(context, own));
  }

  void backward(const ModuleContext& context, const void* input, const void*, void* input_gradient) override {
    const Workspace own = workspace(context.shape);
    const kernels::ComputeContext compute = compute_context(context, own.bytes);
    normalise(context, own, input);
    void* normed = at(context.workspace, own.normed);
    softmax_loss_train(context, compute, loss(context, own), normed);
    layer_norm_gradients(context, compute, norm_shape(context.shape),
                         {.input = input,
                          .mean = at<float>(context.workspace, own.mean),
                          .rstd = at<float>(context.workspace, own.rstd),
                          .output_gradient = normed,
                          .input_gradient = input_gradient},
                         kGain);
  }

 private:
  // The module's own regions; the kernels' scratch follows.
  struct Workspace {
    std::int64_t normed = 0;  // [tokens, channels], then its gradient
    std::int64_t mean = 0;    // [tokens] fp32, as are the next two
    std::int64_t rstd = 0;
    std::int64_t losses = 0;
    std::int64_t bytes = 0;
  };

  Workspace workspace(const BatchShape& shape) const {
    Regions regions;
    Workspace own;
    own.normed = regions.take(shape.tokens() * config_.channels * bytes_of(type_));
    own.mean = regions.take(shape.tokens() * 4);
    own.rstd = regions.take(shape.tokens() * 4);
    own.losses = regions.take(shape.tokens() * 4);
    own.bytes = regions.bytes();
    return own;
  }

  kernels::LayerNormShape norm_shape(const BatchShape& shape) const {
    return {.rows = shape.tokens(), .channels = config_.channels, .type = type_};
  }

  kernels::CrossEntropyShape loss_shape(const BatchShape& shape) const {
    return {.rows = shape.tokens(),
            .channels = config_.channels,
            .vocabulary = config_.vocabulary,
            .type = type_};
  }

  void normalise(const ModuleContext& context, const Workspace& own, const void* input) const {
    kernels::layer_norm_forward(compute_context(context, own.bytes), norm_shape(context.shape),
                                {.input = input,
                                 .gain = context.parameters[kGain],
                                 .bias = context.parameters[kBias],
                                 .output = at(context.workspace, own.normed),
                                 .mean = at<float>(context.workspace, own.mean),
                                 .rstd = at<float>(context.workspace, own.rstd)});
  }

  SoftmaxLoss loss(const ModuleContext& context, const Workspace& own) const {
    return {.shape = loss_shape(context.shape),
            .input = at(context.workspace, own.normed),
            .targets = static_cast<const std::int32_t*>(context.batch) + context.shape.tokens(),
            .weight = kWeight,
            .losses = at<float>(context.workspace, own.losses)};
  }

  Gpt2Config config_;
  DType type_;
};

}  // namespace

std::unique_ptr<Module> make_gpt2_head(const Gpt2Config& config, DType type) {
  return std::make_unique<Gpt2Head>(config, type);
}

}  // namespace tessera::nn
