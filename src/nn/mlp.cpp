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

// The layer's input in the compute type: as it is, or the batch, cast into `scratch` where that is not fp32.
const void* layer_input(const ModuleContext& context, const LayerPlace& place, DType type, const void* input,
                        void* scratch) {
  if (!place.first) return input;
  if (type == DType::fp32) return context.batch;
  kernels::cast(nn::compute_context(context, 0), context.shape.sequences * place.in, DType::fp32,
                context.batch, type, scratch);
  return scratch;
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
    return {.activations = {.output_bytes = out_bytes,
                            .saved_bytes = out_bytes,
                            .workspace_bytes = workspace(shape).bytes +
                                               kernels::linear_workspace_bytes(linear(shape), target)},
            .forward_flops = linear_flops(shape, place_),
            .recompute_flops = linear_flops(shape, place_)};
  }

  std::string numerics(const BatchShape&, const Target&) const override { return "linear, gelu"; }

  void forward(const ModuleContext& context, const void* input, void* output) override {
    const Workspace own = workspace(context.shape);
    const kernels::ComputeContext compute = nn::compute_context(context, own.bytes);
    const void* x = layer_input(context, place_, type_, input, nn::at(context.workspace, own.input));
    kernels::linear_forward(compute, linear(context.shape), x, context.parameters[0], context.parameters[1],
                            context.saved);
    if (output == nullptr) return;
    kernels::gelu_forward(compute, type_, context.shape.sequences * place_.out, context.saved, output);
  }

  void backward(const ModuleContext& context, const void* input, const void* output_gradient,
                void* input_gradient) override {
    const Workspace own = workspace(context.shape);
    const kernels::ComputeContext compute = nn::compute_context(context, own.bytes);
    const kernels::LinearShape shape = linear(context.shape);
    const void* x = layer_input(context, place_, type_, input, nn::at(context.workspace, own.input));
    void* gradient = nn::at(context.workspace, own.gradient);
    kernels::gelu_backward(compute, type_, shape.rows * shape.out, context.saved, output_gradient, gradient);
    nn::linear_parameter_gradients(context, compute,
                                   {.shape = shape, .input = x, .output_gradient = gradient, .weight = 0});
    if (input_gradient != nullptr)
      kernels::linear_backward_input(compute, shape, gradient, context.parameters[0], 0.0f, input_gradient);
  }

 private:
  struct Workspace {
    std::int64_t input = 0;     // [rows, in] of the compute type, where the batch needs a cast
    std::int64_t gradient = 0;  // [rows, out]: of the pre-activation
    std::int64_t bytes = 0;
  };

  Workspace workspace(const BatchShape& shape) const {
    nn::Regions regions;
    Workspace own;
    if (place_.first && type_ != DType::fp32)
      own.input = regions.take(shape.sequences * place_.in * bytes_of(type_));
    own.gradient = regions.take(shape.sequences * place_.out * bytes_of(type_));
    own.bytes = regions.bytes();
    return own;
  }

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

  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_shape(shape);
    return {.activations = {.workspace_bytes = workspace(shape).bytes +
                                               nn::softmax_loss_workspace_bytes(loss_shape(shape), target)},
            .forward_flops = linear_flops(shape, place_)};
  }

  std::string numerics(const BatchShape& shape, const Target& target) const override {
    return fmt::format("logits and cross-entropy by {} rows",
                       kernels::rows_per_chunk(loss_shape(shape), target.device));
  }

  void forward(const ModuleContext& context, const void* input, void*) override {
    if (context.kind != StepKind::evaluate) return;
    const Workspace own = workspace(context.shape);
    nn::softmax_loss_evaluate(context, nn::compute_context(context, own.bytes), loss(context, own, input));
  }

  void backward(const ModuleContext& context, const void* input, const void*, void* input_gradient) override {
    const Workspace own = workspace(context.shape);
    // The kernel always writes this gradient; where this layer is the only one, nobody reads it.
    void* sink = input_gradient != nullptr ? input_gradient : nn::at(context.workspace, own.input);
    nn::softmax_loss_train(context, nn::compute_context(context, own.bytes), loss(context, own, input), sink);
  }

 private:
  struct Workspace {
    std::int64_t input = 0;   // [rows, in] where this is the only layer: the cast batch, then its gradient
    std::int64_t losses = 0;  // [rows] fp32
    std::int64_t bytes = 0;
  };

  Workspace workspace(const BatchShape& shape) const {
    nn::Regions regions;
    Workspace own;
    if (place_.first) own.input = regions.take(shape.sequences * place_.in * bytes_of(type_));
    own.losses = regions.take(shape.sequences * static_cast<std::int64_t>(sizeof(float)));
    own.bytes = regions.bytes();
    return own;
  }

  kernels::CrossEntropyShape loss_shape(const BatchShape& shape) const {
    return {.rows = shape.sequences, .channels = place_.in, .vocabulary = place_.out, .type = type_};
  }

  nn::SoftmaxLoss loss(const ModuleContext& context, const Workspace& own, const void* input) const {
    return {.shape = loss_shape(context.shape),
            .input = layer_input(context, place_, type_, input, nn::at(context.workspace, own.input)),
            .targets = nn::at<std::int32_t>(context.batch, inputs_bytes(context.shape.sequences, inputs_)),
            .weight = 0,
            .losses = nn::at<float>(context.workspace, own.losses)};
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
