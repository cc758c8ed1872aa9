#include "src/nn/mlp_layer.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/kernels.h"
#include "src/nn/regions.h"
#include "src/nn/support.h"
#include "tessera/error.h"

namespace tessera::nn {

ParameterSpec weight_of(const MlpLayer& layer) {
  ParameterSpec spec = {
      .name = layer.name + ".weight", .shape = {layer.out, layer.in}, .dtype = layer.type, .group = kDecay};
  if (layer.split() == LayerSplit::rows)
    spec.gradient = GradientOver::partial;
  else
    spec.cut.dim = layer.split() == LayerSplit::outputs ? 0 : 1;
  return spec;
}

Initial weight_initial(const MlpLayer& layer) {
  return {Initial::Kind::uniform, std::sqrt(6.0 / static_cast<double>(layer.in))};
}

std::int64_t inputs_bytes(std::int64_t sequences, std::int64_t inputs) {
  return align_up(sequences * inputs * static_cast<std::int64_t>(sizeof(float)));
}

MlpShapes::MlpShapes(const MlpLayer& layer, const BatchShape& shape, int tensor_ranks)
    : split(tensor_ranks > 1 ? layer.split() : LayerSplit::none),
      rows(shape.sequences),
      in(layer.in),
      out(layer.out) {
  check_dim("mlp", "sequences of a microbatch", rows);
  if (shape.length != 1)
    throw UsageError(fmt::format("mlp: length of a microbatch is {}; it must be 1", shape.length));
  own_rows = part_of("mlp", "sequences of a microbatch", rows, tensor_ranks);
  const auto hidden = [](int index) { return fmt::format("hidden[{}]", index); };
  if (split == LayerSplit::outputs) out = part_of("mlp", hidden(layer.index), out, tensor_ranks);
  if (split == LayerSplit::inputs) in = part_of("mlp", hidden(layer.index - 1), in, tensor_ranks);
  if (layer.first() && layer.type != DType::fp32) cast_bytes = input_rows() * in * bytes_of(layer.type);
  flops = 2.0 * static_cast<double>(input_rows()) * static_cast<double>(in) * static_cast<double>(out);
}

const void* layer_input(const ModuleContext& context, const MlpLayer& layer, const MlpShapes& shapes,
                        ValueId source, ValueId cast) {
  if (!layer.first()) return context.value(source);
  const std::int64_t first_row = shapes.split == LayerSplit::rows ? shapes.own_rows * context.tensor_rank : 0;
  const float* input = at<float>(context.batch, first_row * layer.in * bytes_of(DType::fp32));
  if (layer.type == DType::fp32) return input;
  kernels::cast(compute_context(context), shapes.input_rows() * layer.in, DType::fp32, input, layer.type,
                context.value(cast));
  return context.value(cast);
}

}  // namespace tessera::nn
