#include "kernels/kernels.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"

namespace tessera::nn {
namespace {

enum Index : std::size_t { kToken, kPosition };
// Behind dropout, where there is any: [tokens, channels].
enum EmbedValue : ValueId { kDroppedGradient };
constexpr int kDropout = 1;  // the part of backward that makes it

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
    const bool drops = config_.dropout > 0;
    ModuleNeeds needs;
    UnitGraph& graph = needs.activations;
    graph.output_bytes = shape.tokens() * config_.channels * bytes_of(config_.type);
    graph.values = {{.name = "dropped.gradient", .bytes = drops ? graph.output_bytes : 0}};
    graph.parts = {{.name = "embedding", .reads = {kBatch}, .writes = {kOutput}}};
    if (drops)
      graph.parts.push_back({.name = "dropout",
                             .pass = Pass::backward,
                             .reads = {kOutputGradient},
                             .writes = {kDroppedGradient},
                             .gradients = kNoGradients});
    graph.parts.push_back(
        {.name = "embedding",
         .pass = Pass::backward,
         .reads = {kBatch, drops ? ValueId{kDroppedGradient} : kOutputGradient},
         .workspace_bytes = kernels::embedding_backward_workspace_bytes(kernel_shape(shape), target)});
    return needs;
  }

  std::string numerics(const BatchShape&, const Target&) const override {
    return "embedding" + words_of_dropout("dropout", config_.dropout);
  }

  void run(int part, const ModuleContext& context) override {
    const kernels::ComputeContext compute = compute_context(context);
    if (context.pass == Pass::forward) return forward(context, compute);
    const bool drops = config_.dropout > 0;
    if (drops && part == kDropout)
      drop_stream(config_, context, compute, 0, context.value(kOutputGradient),
                  context.value(kDroppedGradient));
    else
      backward(context, compute, context.value(drops ? ValueId{kDroppedGradient} : kOutputGradient));
  }

 private:
  ParameterSpec table(const char* name, std::int64_t rows) const {
    return {.name = name, .shape = {rows, config_.channels}, .dtype = config_.type, .group = kDecay};
  }

  void forward(const ModuleContext& context, const kernels::ComputeContext& compute) const {
    void* output = context.value(kOutput);
    kernels::embedding_forward(compute, kernel_shape(context.shape),
                               static_cast<const std::int32_t*>(context.batch), context.parameters[kToken],
                               config_.learned_positions ? context.parameters[kPosition] : nullptr, output);
    drop_stream(config_, context, compute, 0, output, output);
  }

  void backward(const ModuleContext& context, const kernels::ComputeContext& compute,
                const void* output_gradient) const {
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
