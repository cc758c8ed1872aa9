// A hidden layer of an MLP.
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "src/nn/mlp_layer.h"
#include "src/nn/support.h"

namespace tessera::nn {
namespace {

enum HiddenValue : ValueId {
  kCast,                   // [rows, in]: the batch in the layer's type
  kPreactivation,          // [rows, this rank's outputs] or, behind a sum, [this rank's rows, out]
  kPreactivationGradient,  // as above
  // These are there on several tensor ranks. Of outputs that are split: the input, and its gradient. Of
  // inputs that are split: the gradient of the pre-activation, and the pre-activation.
  kWhole,    // [rows, all columns]: of all ranks' rows
  kPartial,  // [rows, all columns] fp32: this rank's part of the sum
  kSum,      // [this rank's rows, all columns] fp32
};

// What its parts do.
enum class Work : std::uint8_t { linear, sum, gelu, gelu_gradient, parameters, input_gradient, input_sum };

class HiddenLayer final : public Module {
 public:
  explicit HiddenLayer(MlpLayer layer)
      : layer_(std::move(layer)), alone_(works(LayerSplit::none)), shared_(works(layer_.split())) {}

  std::vector<ParameterSpec> parameters() const override {
    const Cut cut = layer_.split() == LayerSplit::outputs ? Cut{.dim = 0} : Cut{};
    return {weight_of(layer_),
            {.name = layer_.name + ".bias",
             .shape = {layer_.out},
             .dtype = layer_.type,
             .group = kNoDecay,
             .cut = cut}};
  }

  std::vector<Initial> initials() const override {
    // Biases that differ keep the kinks of the first layer from all meeting in the origin.
    return {weight_initial(layer_),
            {Initial::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(layer_.in))}};
  }

  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_one_chunk("mlp", target);
    const MlpShapes shapes(layer_, shape, target.tensor);
    ModuleNeeds needs;
    needs.activations.output_bytes = activated(shapes) * bytes_of(layer_.type);
    needs.activations.values = values(shapes, target);
    for (const Work work : target.tensor > 1 ? shared_ : alone_)
      needs.activations.parts.push_back(spec_of(work, shapes, target));
    return needs;
  }

  std::string numerics(const BatchShape&, const Target& target) const override {
    return "linear, gelu" + words_of_ranks(target);
  }

  void run(int part, const ModuleContext& context) override {
    const MlpShapes shapes(layer_, context.shape, context.tensor_ranks);
    const kernels::ComputeContext compute = compute_context(context);
    void* const preactivation = context.value(kPreactivation);
    void* const gradient = context.value(gradient_of(shapes));
    switch ((context.tensor_ranks > 1 ? shared_ : alone_)[static_cast<std::size_t>(part)]) {
      case Work::linear:
        if (shapes.split == LayerSplit::inputs)
          return kernels::linear_forward_partial(compute, linear(shapes), context.value(kInput),
                                                 context.parameters[0],
                                                 static_cast<float*>(context.value(kPartial)));
        return kernels::linear_forward(compute, linear(shapes), input(context, shapes), context.parameters[0],
                                       context.parameters[1], preactivation);
      case Work::sum:
        return finish(context, shapes, layer_.out, context.parameters[1], preactivation);
      case Work::gelu:
        return kernels::gelu_forward(compute, layer_.type, activated(shapes), preactivation,
                                     context.value(kOutput));
      case Work::gelu_gradient:
        return kernels::gelu_backward(compute, layer_.type, activated(shapes), preactivation,
                                      context.value(kOutputGradient), context.value(kPreactivationGradient));
      case Work::parameters:
        return linear_parameter_gradients(context, compute,
                                          {.shape = linear(shapes),
                                           .input = input(context, shapes),
                                           .output_gradient = gradient,
                                           .weight = 0});
      case Work::input_gradient:
        if (shapes.split == LayerSplit::outputs)
          return kernels::linear_backward_input_partial(compute, linear(shapes), gradient,
                                                        context.parameters[0],
                                                        static_cast<float*>(context.value(kPartial)));
        return kernels::linear_backward_input(compute, linear(shapes), gradient, context.parameters[0], 0.0f,
                                              context.value(kInputGradient));
      case Work::input_sum:
        return finish(context, shapes, layer_.in, nullptr, context.value(kInputGradient));
    }
  }

 private:
  std::vector<Work> works(LayerSplit split) const {
    std::vector<Work> all = {Work::linear};
    if (split == LayerSplit::inputs) all.push_back(Work::sum);
    for (const Work work : {Work::gelu, Work::gelu_gradient, Work::parameters}) all.push_back(work);
    if (!layer_.first()) all.push_back(Work::input_gradient);
    if (!layer_.first() && split == LayerSplit::outputs) all.push_back(Work::input_sum);
    return all;
  }

  kernels::LinearShape linear(const MlpShapes& shapes) const {
    return {.rows = shapes.rows, .in = shapes.in, .out = shapes.out, .type = layer_.type};
  }
  // Elements of the activation function's output.
  static std::int64_t activated(const MlpShapes& shapes) {
    return (shapes.split == LayerSplit::inputs ? shapes.own_rows : shapes.rows) * shapes.out;
  }
  // What the product reads, and the gradient of what it writes.
  ValueId input_of(const MlpShapes& shapes) const {
    return !layer_.first() && shapes.split == LayerSplit::outputs ? ValueId{kWhole} : layer_.source();
  }
  static ValueId gradient_of(const MlpShapes& shapes) {
    return shapes.split == LayerSplit::inputs ? kWhole : kPreactivationGradient;
  }
  const void* input(const ModuleContext& context, const MlpShapes& shapes) const {
    return layer_input(context, layer_, shapes, input_of(shapes), kCast);
  }

  void finish(const ModuleContext& context, const MlpShapes& shapes, std::int64_t columns, const void* bias,
              void* output) const {
    kernels::finish_sum(compute_context(context),
                        {.rows = shapes.own_rows, .channels = columns, .type = layer_.type},
                        static_cast<const float*>(context.value(kSum)), bias, output);
  }

  IdVector<ValueSpec> values(const MlpShapes& shapes, const Target& target) const {
    const std::int64_t bytes = activated(shapes) * bytes_of(layer_.type);
    const Held held = target.tensor > 1 ? Held::split : Held::copied;
    IdVector<ValueSpec> values = {
        {.name = "cast", .bytes = shapes.cast_bytes},
        {.name = "preactivation", .bytes = bytes, .keep = Keep::saved, .held = held},
        {.name = "preactivation.gradient", .bytes = bytes, .held = held}};
    // The batch comes whole, and nobody wants its gradient.
    if (target.tensor == 1 || layer_.first()) return values;
    const bool inputs = shapes.split == LayerSplit::inputs;
    const std::int64_t numel = shapes.own_rows * (inputs ? layer_.out : layer_.in);
    const std::string summed = inputs ? "preactivation" : "input.gradient";
    values.push_back({.name = inputs ? "preactivation.gradient.whole" : "input.whole",
                      .bytes = numel * target.tensor * bytes_of(layer_.type),
                      .exchanged = inputs ? ValueId{kPreactivationGradient} : kInput});
    values.push_back(
        {.name = summed + ".partial", .bytes = 4 * numel * target.tensor, .held = Held::partial});
    values.push_back(
        {.name = summed + ".sum", .bytes = 4 * numel, .held = Held::split, .exchanged = kPartial});
    return values;
  }

  PartSpec spec_of(Work work, const MlpShapes& shapes, const Target& target) const {
    const std::vector<ValueId> cast =
        shapes.cast_bytes > 0 ? std::vector{ValueId{kCast}} : std::vector<ValueId>{};
    const std::int64_t scratch = kernels::linear_workspace_bytes(linear(shapes), target);
    const std::int64_t partial_scratch = kernels::linear_partial_workspace_bytes(linear(shapes), target);
    switch (work) {
      case Work::linear: {
        PartSpec spec = {
            .name = "linear", .reads = {input_of(shapes)}, .writes = cast, .flops = shapes.flops};
        spec.writes.push_back(shapes.split == LayerSplit::inputs ? kPartial : kPreactivation);
        spec.workspace_bytes = shapes.split == LayerSplit::inputs ? partial_scratch : scratch;
        return spec;
      }
      case Work::sum:
        return {.name = "sum", .reads = {kSum}, .writes = {kPreactivation}};
      case Work::gelu:
        return {.name = "gelu", .reads = {kPreactivation}, .writes = {kOutput}};
      case Work::gelu_gradient:
        return {.name = "gelu",
                .pass = Pass::backward,
                .reads = {kPreactivation, kOutputGradient},
                .writes = {kPreactivationGradient},
                .gradients = kNoGradients};
      case Work::parameters:
        return {.name = "parameters",
                .pass = Pass::backward,
                .reads = {input_of(shapes), gradient_of(shapes)},
                .writes = cast,
                .workspace_bytes = scratch,
                .flops = shapes.flops};
      case Work::input_gradient: {
        const bool partial = shapes.split == LayerSplit::outputs;
        return {.name = "linear",
                .pass = Pass::backward,
                .reads = {gradient_of(shapes)},
                .writes = {partial ? ValueId{kPartial} : kInputGradient},
                .gradients = kNoGradients,
                .workspace_bytes = partial ? partial_scratch : scratch,
                .flops = shapes.flops};
      }
      case Work::input_sum:
        break;
    }
    return {.name = "input sum",
            .pass = Pass::backward,
            .reads = {kSum},
            .writes = {kInputGradient},
            .gradients = kNoGradients};
  }

  MlpLayer layer_;
  std::vector<Work> alone_, shared_;  // by part, on one rank and on several
};

}  // namespace

std::unique_ptr<Module> make_hidden_layer(MlpLayer layer) {
  return std::make_unique<HiddenLayer>(std::move(layer));
}

}  // namespace tessera::nn
