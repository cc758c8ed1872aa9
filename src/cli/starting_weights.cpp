#include "src/cli/starting_weights.h"

#include <fmt/format.h>

#include "tessera/error.h"
#include "tessera/hugging_face.h"
#include "tessera/safetensors.h"

namespace tessera::cli {

void import_weights(const Setup& setup, const Communicator& world, Engine& engine) {
  const ModelConfig& model = setup.config.model;
  const auto told = [](const Error& error) { return fmt::format("model.weights: {}", error.what()); };
  try {
    import_safetensors(model.weights, world, engine, hugging_face_weights(*setup.model),
                       {.allow_nonfinite = model.allow_nonfinite_weights,
                        .name_of_allow_nonfinite = "model.allow_nonfinite_weights"});
  } catch (const UsageError& error) {
    throw UsageError(told(error));
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(told(error));
  } catch (const CommunicationError& error) {
    throw CommunicationError(told(error), error.culprit());
  }
}

}  // namespace tessera::cli
