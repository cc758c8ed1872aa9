#include <fmt/format.h>

#include <utility>

#include "src/nn/mlp_layer.h"
#include "src/nn/support.h"
#include "tessera/model.h"

namespace tessera {
namespace {

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
    return nn::inputs_bytes(shape.sequences, inputs) +
           shape.sequences * static_cast<std::int64_t>(sizeof(std::int32_t));
  };
  std::int64_t in = config.inputs;
  const auto next = [&](std::int64_t out) {
    const int index = model.modules.count();
    model.names.push_back(fmt::format("layer.{}", index));
    return nn::MlpLayer{.name = model.names.back(),
                        .type = type,
                        .index = index,
                        .last = index == static_cast<int>(config.hidden.size()),
                        .in = std::exchange(in, out),
                        .out = out,
                        .inputs = config.inputs};
  };
  for (const std::int64_t out : config.hidden) model.modules.push_back(nn::make_hidden_layer(next(out)));
  model.modules.push_back(nn::make_classifier(next(config.classes)));
  return model;
}

}  // namespace tessera
