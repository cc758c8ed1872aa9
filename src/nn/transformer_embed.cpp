#include "kernels/kernels.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"

namespace tessera::nn {
namespace {

enum Index : std::size_t { kToken, kPosition };

class Embed final : public Module {
 public:
  explicit Embed(const TransformerConfig& config) : config_(config) {}

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs = {table("embed.token", config_.vocabulary)};
    if (config_.learned_positions) specs.push_back(table("embed.position", config_.context));
    return specs;
  }

  bool parameters_read_in_forward_only() const override { return true; }

  std::vector<Initial> initials() const override {
    return std::vector<Initial>(config_.learned_positions ? 2 : 1,
                                {Initial::Kind::normal, config_.deviation});
  }

  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_batch(config_, shape);
    return {.activations = {
                .output_bytes = shape.tokens() * config_.channels * bytes_of(config_.type),
                .workspace_bytes = kernels::embedding_backward_workspace_bytes(kernel_shape(shape), target)}};
  }

  void forward(const ModuleContext& context, const void*, void* output) override {
    if (output == nullptr) return;  // a recompute pass: nothing is saved
    kernels::embedding_forward(compute_context(context, 0), kernel_shape(context.shape),
                               static_cast<const std::int32_t*>(context.batch), context.parameters[kToken],
                               config_.learned_positions ? context.parameters[kPosition] : nullptr, output);
  }

  void backward(const ModuleContext& context, const void*, const void* output_gradient, void*) override {
    kernels::EmbeddingBackward arguments = {.tokens = static_cast<const std::int32_t*>(context.batch),
                                            .output_gradient = output_gradient,
                                            .token_gradient = context.gradients[kToken],
                                            .token_beta = context.betas[kToken]};
    if (config_.learned_positions) {
      arguments.position_gradient = context.gradients[kPosition];
      arguments.position_beta = context.betas[kPosition];
    }
    kernels::embedding_backward(compute_context(context, 0), kernel_shape(context.shape), arguments);
  }

 private:
  ParameterSpec table(const char* name, std::int64_t rows) const {
    return {.name = name, .shape = {rows, config_.channels}, .dtype = config_.type, .group = kDecay};
  }

  kernels::EmbeddingShape kernel_shape(const BatchShape& shape) const {
    return {.batch = shape.sequences,
            .sequence = shape.length,
            .channels = config_.channels,
            .vocabulary = config_.vocabulary,
            .positions = config_.learned_positions ? config_.context : 0,
            .type = config_.type};
  }

  TransformerConfig config_;
};

}  // namespace

std::unique_ptr<Module> make_embed(const TransformerConfig& config) {
  return std::make_unique<Embed>(config);
}

}  // namespace tessera::nn
