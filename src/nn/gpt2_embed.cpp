#include "kernels/kernels.h"
#include "src/nn/gpt2_modules.h"
#include "src/nn/support.h"

namespace tessera::nn {
namespace {

class Gpt2Embed final : public Module {
 public:
  Gpt2Embed(const Gpt2Config& config, DType type) : config_(config), type_(type) {}

  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "embed.token",
             .shape = {config_.vocabulary, config_.channels},
             .dtype = type_,
             .group = kDecay},
            {.name = "embed.position",
             .shape = {config_.context, config_.channels},
             .dtype = type_,
             .group = kDecay}};
  }

  std::vector<Initial> initials() const override {
    return {{Initial::Kind::normal, kGpt2Deviation}, {Initial::Kind::normal, kGpt2Deviation}};
  }

  ModuleNeeds needs(const BatchShape& shape, int threads) const override {
    check_gpt2_shape(config_, shape);
    return {.activations = {.output_bytes = shape.tokens() * config_.channels * bytes_of(type_),
                            .workspace_bytes =
                                kernels::embedding_backward_workspace_bytes(kernel_shape(shape), threads)}};
  }

  void forward(const ModuleContext& context, const void*, void* output) override {
    if (output == nullptr) return;  // a recompute pass: nothing is saved
    kernels::embedding_forward(compute_context(context, 0), kernel_shape(context.shape),
                               static_cast<const std::int32_t*>(context.batch), context.parameters[0],
                               context.parameters[1], output);
  }

  void backward(const ModuleContext& context, const void*, const void* output_gradient, void*) override {
    kernels::embedding_backward(compute_context(context, 0), kernel_shape(context.shape),
                                {.tokens = static_cast<const std::int32_t*>(context.batch),
                                 .output_gradient = output_gradient,
                                 .token_gradient = context.gradients[0],
                                 .token_beta = context.betas[0],
                                 .position_gradient = context.gradients[1],
                                 .position_beta = context.betas[1]});
  }

 private:
  kernels::EmbeddingShape kernel_shape(const BatchShape& shape) const {
    return {.batch = shape.sequences,
            .sequence = shape.length,
            .channels = config_.channels,
            .vocabulary = config_.vocabulary,
            .positions = config_.context,
            .type = type_};
  }

  Gpt2Config config_;
  DType type_;
};

}  // namespace

std::unique_ptr<Module> make_gpt2_embed(const Gpt2Config& config, DType type) {
  return std::make_unique<Gpt2Embed>(config, type);
}

}  // namespace tessera::nn
