// What follows from the values of a Config.
#include "src/cli/config.h"

namespace tessera::cli {

Mesh mesh_of(const MeshConfig& mesh) {
  return {.pipeline = static_cast<int>(mesh.pipeline),
          .replicate = static_cast<int>(mesh.replicate),
          .shard = static_cast<int>(mesh.shard),
          .tensor = static_cast<int>(mesh.tensor)};
}

bool only_evaluates(const Config& config) { return config.run.steps == 0 && config.run.seconds == 0.0; }

bool evaluates(const Config& config) { return config.run.evaluate_every > 0 || only_evaluates(config); }

const std::string& trained_on(const Config& config) {
  const DataConfig& data = config.data;
  return data.train.empty() && only_evaluates(config) ? data.validation : data.train;
}

Rounds rounds_of(const Config& config) {
  const int blocks = static_cast<int>(config.numerics.blocks);
  if (config.run.microbatches_per_step == 0)
    return {.count = static_cast<int>(config.run.microbatches), .blocks = blocks};
  return Rounds::of(config.run.microbatches_per_step, mesh_of(config.mesh), blocks);
}

bool exports_adapter(const Config& config) { return config.lora.rank > 0 && !config.lora.merge; }

bool is_one_file(const std::string& path) { return path.ends_with(".safetensors"); }

}  // namespace tessera::cli
