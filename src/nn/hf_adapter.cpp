// Adapters as Hugging Face's PEFT stores them: their tensors, and adapter_config.json.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/nn/lora.h"
#include "tessera/error.h"
#include "tessera/hugging_face.h"

namespace tessera {
namespace {

// An adapter, and the tensor of the weight that it is on.
struct Adapter {
  std::size_t of = 0;  // among the tensors of hugging_face_weights()
  std::string a, b;    // parameters
  std::int64_t a_row = 0, b_row = 0, rows = 0, inputs = 0;
};

std::vector<Adapter> adapters_of(const Model& model, const WeightMap& map) {
  const Lora& lora = model.lora;
  if (lora.rank == 0)
    throw UsageError(fmt::format("model '{}' has no adapters; make it with a lora.rank above 0", model.name));
  std::vector<Adapter> adapters;
  const auto layers = static_cast<std::int64_t>(model.modules.size()) - 2;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::array<std::int64_t, std::size(nn::kBlockLayers)> a_rows{}, b_rows{};
    for (const nn::LoraTarget& target : nn::lora_table(model.name)) {
      if (std::ranges::find(lora.targets, target.name) == lora.targets.end()) continue;
      const std::string end = fmt::format(".{}.{}.weight", layer, target.path);
      const auto weight = std::ranges::find_if(
          map.tensors, [&](const StoredTensor& tensor) { return tensor.name.ends_with(end); });
      const std::string home = weight->parameter.substr(0, weight->parameter.rfind('.'));
      const std::size_t rows_dim = weight->transposed ? 1 : 0;
      std::int64_t &a_row = a_rows[static_cast<std::size_t>(target.layer)],
                   &b_row = b_rows[static_cast<std::size_t>(target.layer)];
      adapters.push_back({.of = static_cast<std::size_t>(weight - map.tensors.begin()),
                          .a = home + ".lora_a",
                          .b = home + ".lora_b",
                          .a_row = a_row,
                          .b_row = b_row,
                          .rows = weight->shape[rows_dim],
                          .inputs = weight->shape[1 - rows_dim]});
      a_row += lora.rank;
      b_row += weight->shape[rows_dim];
    }
  }
  return adapters;
}

}  // namespace

WeightMap hugging_face_adapter(const Model& model) {
  const WeightMap base = hugging_face_weights(model);
  WeightMap map;
  map.whole = false;
  const std::int64_t rank = model.lora.rank;
  for (const Adapter& adapter : adapters_of(model, base)) {
    const std::string& weight = base.tensors[adapter.of].name;
    const std::string name = "base_model.model." + weight.substr(0, weight.rfind('.'));
    map.tensors.push_back({.name = name + ".lora_A.weight",
                           .shape = {rank, adapter.inputs},
                           .parameter = adapter.a,
                           .begin = adapter.a_row * adapter.inputs});
    map.tensors.push_back({.name = name + ".lora_B.weight",
                           .shape = {adapter.rows, rank},
                           .parameter = adapter.b,
                           .begin = adapter.b_row * rank});
  }
  return map;
}

WeightMap hugging_face_merged_weights(const Model& model) {
  WeightMap map = hugging_face_weights(model);
  for (const Adapter& adapter : adapters_of(model, map))
    map.tensors[adapter.of].added = StoredTensor::Product{.left = adapter.b,
                                                          .right = adapter.a,
                                                          .left_row = adapter.b_row,
                                                          .right_row = adapter.a_row,
                                                          .rank = model.lora.rank,
                                                          .scale = model.lora.scale()};
  return map;
}

std::string hugging_face_adapter_config(const Model& model, const std::string& base) {
  using Json = nlohmann::ordered_json;
  const Lora& lora = model.lora;
  // PEFT writes it as an integer where it is one.
  const bool whole = lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e15;
  const Json alpha = whole ? Json(static_cast<std::int64_t>(lora.alpha)) : Json(lora.alpha);
  const Json json = {{"peft_type", "LORA"},
                     {"task_type", "CAUSAL_LM"},
                     {"base_model_name_or_path", base.empty() ? Json(nullptr) : Json(base)},
                     {"inference_mode", true},
                     {"r", lora.rank},
                     {"lora_alpha", alpha},
                     {"lora_dropout", 0.0},
                     {"target_modules", lora.targets},
                     {"bias", "none"},
                     // GPT-2's layers are "Conv1D", whose weight is [in, out].
                     {"fan_in_fan_out", model.name == "gpt2"},
                     {"init_lora_weights", true},
                     {"modules_to_save", nullptr},
                     {"rank_pattern", Json::object()},
                     {"alpha_pattern", Json::object()},
                     {"layers_to_transform", nullptr},
                     {"layers_pattern", nullptr},
                     {"use_rslora", false},
                     {"use_dora", false}};
  return json.dump(2) + "\n";
}

}  // namespace tessera
