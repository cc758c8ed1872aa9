#include "kernels/kernels.h"
#include "src/nn/regions.h"
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
                .output_bytes = output_bytes(shape),
                .workspace_bytes = dropped_bytes(shape) +
                                   kernels::embedding_backward_workspace_bytes(kernel_shape(shape), target)}};
  }

  std::string numerics(const BatchShape&, const Target&) const override {
    return "embedding" + words_of_dropout("dropout", config_.dropout);
  }

  void forward(const ModuleContext& context, const void*, void* output) override {
    if (output == nullptr) return;  // a recompute pass: nothing is saved
    const kernels::ComputeContext compute = compute_context(context, 0);
    kernels::embedding_forward(compute, kernel_shape(context.shape),
                               static_cast<const std::int32_t*>(context.batch), context.parameters[kToken],
                               config_.learned_positions ? context.parameters[kPosition] : nullptr, output);
    drop_stream(config_, context, compute, 0, output, output);
  }

  void backward(const ModuleContext& context, const void*, const void* output_gradient, void*) override {
    const kernels::ComputeContext compute = compute_context(context, dropped_bytes(context.shape));
    if (config_.dropout > 0) {
      drop_stream(config_, context, compute, 0, output_gradient, context.workspace);
      output_gradient = context.workspace;
    }
    kernels::EmbeddingBackward arguments = {.tokens = static_cast<const std::int32_t*>(context.batch),
                                            .output_gradient = output_gradient,
                                            .token_gradient = context.gradients[kToken],
                                            .token_beta = context.betas[kToken]};
    if (config_.learned_positions) {
      arguments.position_gradient = context.gradients[kPosition];
      arguments.position_beta = context.betas[kPosition];
    }
    kernels::embedding_backward(compute, kernel_shape(context.shape), arguments);
  }

 private:
  ParameterSpec table(const char* name, std::int64_t rows) const {
    return {.name = name, .shape = {rows, config_.channels}, .dtype = config_.type, .group = kDecay};
  }

  std::int64_t output_bytes(const BatchShape& shape) const {
    return shape.tokens() * config_.channels * bytes_of(config_.type);
  }

  // Of the gradient behind dropout, ahead of the kernels' scratch.
  std::int64_t dropped_bytes(const BatchShape& shape) const {
    return config_.dropout > 0 ? align_up(output_bytes(shape)) : 0;
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
