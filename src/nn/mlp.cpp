#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cross_entropy_chunks.h"
#include "kernels/kernels.h"
#include "src/nn/regions.h"
#include "src/nn/softmax_loss.h"
#include "src/nn/support.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

using nn::kBatch, nn::kInput, nn::kOutput, nn::kOutputGradient, nn::kInputGradient, nn::kNoGradients;

// Where a layer stands, and its dims.
struct LayerPlace {
  std::string name;
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool first = false;  // its input is the batch: fp32, and nobody wants its gradient
};

void check_shape(const BatchShape& shape) {
  nn::check_dim("mlp", "sequences of a microbatch", shape.sequences);
  if (shape.length != 1)
    throw UsageError(fmt::format("mlp: length of a microbatch is {}; it must be 1", shape.length));
}

std::int64_t inputs_bytes(std::int64_t sequences, std::int64_t inputs) {
  return nn::align_up(sequences * inputs * static_cast<std::int64_t>(sizeof(float)));
}

// Where the layer's input comes from.
ValueId source_of(const LayerPlace& place) { return place.first ? kBatch : kInput; }

// The input in the compute type: as it is, or the batch, cast into the value `cast` where that is not fp32.
const void* layer_input(const ModuleContext& context, const LayerPlace& place, DType type, ValueId cast) {
  if (!place.first) return context.value(kInput);
  if (type == DType::fp32) return context.batch;
  kernels::cast(nn::compute_context(context), context.shape.sequences * place.in, DType::fp32, context.batch,
                type, context.value(cast));
  return context.value(cast);
}

double linear_flops(const BatchShape& shape, const LayerPlace& place) {
  return 2.0 * static_cast<double>(shape.sequences) * static_cast<double>(place.in) *
         static_cast<double>(place.out);
}

// Uniform with the deviation that keeps the variance of activations under a rectifier (He et al. 2015).
Initial weight_initial(const LayerPlace& place) {
  return {Initial::Kind::uniform, std::sqrt(6.0 / static_cast<double>(place.in))};
}

// gelu(input weight^T + bias). Saves the pre-activation.
class HiddenLayer final : public Module {
 public:
  HiddenLayer(LayerPlace place, DType type) : place_(std::move(place)), type_(type) {}

  std::vector<ParameterSpec> parameters() const override {
    return {{.name = place_.name + ".weight", .shape = {place_.out, place_.in}, .dtype = type_, .group = 0},
            {.name = place_.name + ".bias", .shape = {place_.out}, .dtype = type_, .group = 1}};
  }

  std::vector<Initial> initials() const override {
    // Biases that differ keep the kinks of the first layer from all meeting in the origin.
    return {weight_initial(place_),
            {Initial::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(place_.in))}};
  }

  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_shape(shape);
    const std::int64_t out_bytes = shape.sequences * place_.out * bytes_of(type_);
    const std::int64_t cast_bytes =
        place_.first && type_ != DType::fp32 ? shape.sequences * place_.in * bytes_of(type_) : 0;
    const std::int64_t scratch = kernels::linear_workspace_bytes(linear(shape), target);
    const double flops = linear_flops(shape, place_);
    ModuleNeeds needs;
    UnitGraph& graph = needs.activations;
    graph.output_bytes = out_bytes;
    graph.values = {{.name = "cast", .bytes = cast_bytes},
                    {.name = "preactivation", .bytes = out_bytes, .keep = Keep::saved},
                    {.name = "preactivation.gradient", .bytes = out_bytes}};
    graph.parts = {{.name = "linear",
                    .reads = {source_of(place_)},
                    .writes = {kCast, kPreactivation},
                    .workspace_bytes = scratch,
                    .flops = flops},
                   {.name = "gelu", .reads = {kPreactivation}, .writes = {kOutput}},
                   {.name = "gelu",
                    .pass = Pass::backward,
                    .reads = {kPreactivation, kOutputGradient},
                    .writes = {kPreactivationGradient},
                    .gradients = kNoGradients},
                   {.name = "parameters",
                    .pass = Pass::backward,
                    .reads = {source_of(place_), kPreactivationGradient},
                    .writes = {kCast},
                    .workspace_bytes = scratch,
                    .flops = flops}};
    if (!place_.first)
      graph.parts.push_back({.name = "linear",
                             .pass = Pass::backward,
                             .reads = {kPreactivationGradient},
                             .writes = {kInputGradient},
                             .gradients = kNoGradients,
                             .workspace_bytes = scratch,
                             .flops = flops});
    return needs;
  }

  std::string numerics(const BatchShape&, const Target&) const override { return "linear, gelu"; }

  void run(int part, const ModuleContext& context) override {
    const kernels::ComputeContext compute = nn::compute_context(context);
    const kernels::LinearShape shape = linear(context.shape);
    void* const preactivation = context.value(kPreactivation);
    void* const gradient = context.value(kPreactivationGradient);
    switch (part) {
      case kLinear:
        return kernels::linear_forward(compute, shape, layer_input(context, place_, type_, kCast),
                                       context.parameters[0], context.parameters[1], preactivation);
      case kGelu:
        return kernels::gelu_forward(compute, type_, shape.rows * shape.out, preactivation,
                                     context.value(kOutput));
      case kGeluBackward:
        return kernels::gelu_backward(compute, type_, shape.rows * shape.out, preactivation,
                                      context.value(kOutputGradient), gradient);
      case kParameters:
        return nn::linear_parameter_gradients(context, compute,
                                              {.shape = shape,
                                               .input = layer_input(context, place_, type_, kCast),
                                               .output_gradient = gradient,
                                               .weight = 0});
      default:
        return kernels::linear_backward_input(compute, shape, gradient, context.parameters[0], 0.0f,
                                              context.value(kInputGradient));
    }
  }

 private:
  enum Value : ValueId { kCast, kPreactivation, kPreactivationGradient };
  enum Part { kLinear, kGelu, kGeluBackward, kParameters, kLinearBackward };

  kernels::LinearShape linear(const BatchShape& shape) const {
    return {.rows = shape.sequences, .in = place_.in, .out = place_.out, .type = type_};
  }

  LayerPlace place_;
  DType type_;
};

// The last layer and the loss. It has no bias: softmax over few classes hardly needs one.
class ClassifierLayer final : public Module {
 public:
  ClassifierLayer(LayerPlace place, std::int64_t inputs, DType type)
      : place_(std::move(place)), inputs_(inputs), type_(type) {}

  std::vector<ParameterSpec> parameters() const override {
    return {{.name = place_.name + ".weight", .shape = {place_.out, place_.in}, .dtype = type_, .group = 0}};
  }

  std::vector<Initial> initials() const override { return {weight_initial(place_)}; }

  // In training all work is left to backward: the part of forward then does nothing.
  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_shape(shape);
    ModuleNeeds needs;
    UnitGraph& graph = needs.activations;
    // The kernel always writes the input's gradient; where this layer is the only one, nobody reads it.
    graph.values = {
        {.name = "cast", .bytes = place_.first ? shape.sequences * place_.in * bytes_of(type_) : 0},
        {.name = "losses", .bytes = shape.sequences * static_cast<std::int64_t>(sizeof(float))}};
    const std::int64_t scratch = nn::softmax_loss_workspace_bytes(loss_shape(shape), target);
    const double flops = linear_flops(shape, place_);
    std::vector<ValueId> reads = {kBatch};
    if (!place_.first) reads.push_back(kInput);
    graph.parts = {{.name = "loss",
                    .reads = reads,
                    .writes = {kCast, kLosses},
                    .workspace_bytes = scratch,
                    .flops = flops},
                   {.name = "loss",
                    .pass = Pass::backward,
                    .reads = reads,
                    .writes = {kCast, kLosses, kInputGradient},
                    .workspace_bytes = scratch,
                    .flops = 2 * flops}};
    return needs;
  }

  std::string numerics(const BatchShape& shape, const Target& target) const override {
    return fmt::format("logits and cross-entropy by {} rows",
                       kernels::rows_per_chunk(loss_shape(shape), target.device));
  }

  void run(int part, const ModuleContext& context) override {
    const kernels::ComputeContext compute = nn::compute_context(context);
    if (part == kTrain)
      nn::softmax_loss_train(context, compute, loss(context),
                             context.value(place_.first ? ValueId{kCast} : kInputGradient));
    else if (context.kind == StepKind::evaluate)
      nn::softmax_loss_evaluate(context, compute, loss(context));
  }

 private:
  enum Value : ValueId { kCast, kLosses };
  enum Part { kEvaluate, kTrain };

  kernels::CrossEntropyShape loss_shape(const BatchShape& shape) const {
    return {.rows = shape.sequences, .channels = place_.in, .vocabulary = place_.out, .type = type_};
  }

  nn::SoftmaxLoss loss(const ModuleContext& context) const {
    return {.shape = loss_shape(context.shape),
            .input = layer_input(context, place_, type_, kCast),
            .targets = nn::at<std::int32_t>(context.batch, inputs_bytes(context.shape.sequences, inputs_)),
            .weight = 0,
            .losses = static_cast<float*>(context.value(kLosses))};
  }

  LayerPlace place_;
  std::int64_t inputs_;
  DType type_;
};

void check_config(const MlpConfig& config) {
  nn::check_dim("mlp", "inputs", config.inputs);
  nn::check_dim("mlp", "classes", config.classes);
  for (std::size_t layer = 0; layer < config.hidden.size(); ++layer)
    nn::check_dim("mlp", fmt::format("hidden[{}]", layer), config.hidden[layer]);
}

}  // namespace

Model make_mlp(const MlpConfig& config, DType type) {
  check_config(config);
  nn::check_type("mlp", type);
  Model model;
  model.name = "mlp";
  model.batch_bytes = [inputs = config.inputs](const BatchShape& shape) {
    return inputs_bytes(shape.sequences, inputs) +
           shape.sequences * static_cast<std::int64_t>(sizeof(std::int32_t));
  };
  std::int64_t in = config.inputs;
  const auto next = [&](std::int64_t out) {
    model.names.push_back(fmt::format("layer.{}", model.modules.size()));
    return LayerPlace{
        .name = model.names.back(), .in = std::exchange(in, out), .out = out, .first = model.modules.empty()};
  };
  for (const std::int64_t out : config.hidden)
    model.modules.push_back(std::make_unique<HiddenLayer>(next(out), type));
  model.modules.push_back(std::make_unique<ClassifierLayer>(next(config.classes), config.inputs, type));
  return model;
}

}  // namespace tessera
