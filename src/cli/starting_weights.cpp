#include "src/cli/starting_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "tessera/error.h"
#include "tessera/hugging_face.h"
#include "tessera/safetensors.h"

namespace tessera::cli {

namespace {

// The keys that decide shapes and are left to the preset, for who wonders about a shape.
std::string preset_shapes(const Config& config) {
  const ModelConfig& model = config.model;
  std::vector<std::string> keys;
  for (const auto& [key, value] : {std::pair("model.vocabulary", model.vocabulary),
                                   {"model.context", model.context},
                                   {"model.layers", model.layers},
                                   {"model.channels", model.channels}})
    if (value == 0) keys.emplace_back(key);
  if (model.family == "llama" && model.kv_heads == 0) keys.emplace_back("model.kv_heads");
  if (model.family == "llama" && model.hidden == 0) keys.emplace_back("model.hidden");
  return keys.empty() ? "" : fmt::format(" (from preset {}: {})", model.preset, fmt::join(keys, ", "));
}

}  // namespace

void import_weights(const Setup& setup, const Communicator& world, Trainer& trainer, const char* named) {
  const ModelConfig& model = setup.config.model;
  const auto told = [&](const Error& error) {
    return fmt::format("{}{}: {}", named, model.adapter.empty() ? "" : ", model.adapter", error.what());
  };
  try {
    std::vector<WeightSource> sources = {{model.weights, hugging_face_weights(*setup.model)}};
    if (!model.adapter.empty())
      sources.push_back({std::filesystem::path(model.adapter) / "adapter_model.safetensors",
                         hugging_face_adapter(*setup.model)});
    import_safetensors(sources, world, trainer.engine(),
                       {.allow_nonfinite = model.allow_nonfinite_weights,
                        .name_of_allow_nonfinite = "model.allow_nonfinite_weights"},
                       trainer.initial_weights());
  } catch (const UsageError& error) {
    throw UsageError(told(error) + preset_shapes(setup.config));
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(told(error));
  } catch (const CommunicationError& error) {
    throw CommunicationError(told(error), error.culprit());
  }
}

}  // namespace tessera::cli
