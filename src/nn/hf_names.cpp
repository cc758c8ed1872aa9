#include <fmt/format.h>

#include "src/nn/hf_names.h"
#include "tessera/error.h"
#include "tessera/hugging_face.h"

namespace tessera {

WeightMap hugging_face_weights(const Model& model) {
  if (model.name != "gpt2" && model.name != "llama")
    throw UsageError(fmt::format("model '{}' has no names in Hugging Face's checkpoints; gpt2 and llama have",
                                 model.name));
  WeightMap map = model.name == "gpt2" ? nn::hf_gpt2(nn::Shapes(model)) : nn::hf_llama(nn::Shapes(model));
  map.whole = model.lora.rank == 0;
  return map;
}

namespace nn {

Shapes::Shapes(const Model& model)
    : layers(static_cast<std::int64_t>(model.modules.size()) - 2), vocabulary(model.vocabulary) {
  for (const std::unique_ptr<Module>& module : model.modules)
    for (ParameterSpec& spec : module->parameters()) {
      if (!spec.tied_to.empty()) continue;
      shapes_[spec.name] = std::move(spec.shape);
    }
}

const Shape& Shapes::of(const std::string& parameter) const {
  const auto found = shapes_.find(parameter);
  if (found == shapes_.end()) throw UsageError(fmt::format("the model has no parameter '{}'", parameter));
  return found->second;
}

void add_whole(const Shapes& shapes, const std::string& name, const std::string& parameter, WeightMap& map) {
  map.tensors.push_back({.name = name, .shape = shapes.of(parameter), .parameter = parameter});
}

void add_tokens(const Shapes& shapes, const std::string& name, const std::string& parameter, WeightMap& map) {
  const std::int64_t channels = shapes.of(parameter)[1];
  map.tensors.push_back({.name = name, .shape = {shapes.vocabulary, channels}, .parameter = parameter});
  if (shapes.of(parameter)[0] > shapes.vocabulary)
    map.padding.push_back({.parameter = parameter, .begin = shapes.vocabulary * channels});
}

}  // namespace nn
}  // namespace tessera
