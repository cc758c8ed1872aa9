#include "src/nn/lora_parts.h"

#include <algorithm>

namespace tessera::nn {
namespace {

template <BlockLayer layer>
constexpr AdapterRuns runs(const char* name, const char* name_of_gradients,
                           void (BlockRun::*of_layer)() const, void (BlockRun::*of_layer_gradient)() const,
                           void (BlockRun::*of_layer_parameters)() const) {
  return {.layer = layer,
          .name = name,
          .name_of_gradients = name_of_gradients,
          .adapter = &BlockRun::adapter<layer>,
          .gradient = &BlockRun::adapter_gradient<layer>,
          .gradients = &BlockRun::adapter_parameters<layer>,
          .of_layer = of_layer,
          .of_layer_gradient = of_layer_gradient,
          .of_layer_parameters = of_layer_parameters};
}

constexpr AdapterRuns kRuns[] = {
    runs<BlockLayer::qkv>("qkv lora", "qkv lora parameters", &BlockRun::qkv, &BlockRun::qkv_gradient,
                          &BlockRun::qkv_parameters),
    runs<BlockLayer::projection>("projection lora", "projection lora parameters", &BlockRun::projection,
                                 &BlockRun::projection_gradient, &BlockRun::projection_parameters),
    runs<BlockLayer::up>("up lora", "up lora parameters", &BlockRun::up, &BlockRun::up_gradient,
                         &BlockRun::up_parameters),
    runs<BlockLayer::down>("down lora", "down lora parameters", &BlockRun::down, &BlockRun::down_gradient,
                           &BlockRun::down_parameters)};

}  // namespace

const AdapterRuns& adapter_runs(BlockLayer layer) { return kRuns[static_cast<std::size_t>(layer)]; }

void add_adapters(const TransformerConfig& config, const BlockFlow& flow, std::vector<BlockPart>& parts) {
  for (const AdapterRuns& runs : kRuns) {
    if (lora_segments(config, runs.layer).empty()) continue;
    const ValueId input = flow.input_of(runs.layer), gradient = flow.gradient_of(runs.layer);
    const ValueId between = BlockFlow::adapter_of(runs.layer);
    const ValueId between_gradient = BlockFlow::adapter_gradient_of(runs.layer);
    // Ahead of the layer's part, which then reads `value`.
    const auto add = [&](void (BlockRun::*of_layer)() const, ValueId value, std::vector<BlockPart> own) {
      const auto at = std::ranges::find(parts, of_layer, &BlockPart::run);
      at->reads.push_back(value);
      for (BlockPart& part : own) {
        part.work = BlockWork::adapter;
        part.adapted = runs.layer;
      }
      parts.insert(at, own.begin(), own.end());
    };
    add(runs.of_layer, between, {{runs.name, Pass::forward, runs.adapter, {input}, {between}}});
    add(runs.of_layer_gradient, between_gradient,
        {{runs.name, Pass::backward, runs.gradient, {gradient}, {between_gradient}},
         {runs.name_of_gradients,
          Pass::backward,
          runs.gradients,
          {input, between, gradient, between_gradient},
          {}}});
  }
}

}  // namespace tessera::nn
