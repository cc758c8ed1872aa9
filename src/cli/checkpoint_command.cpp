// `tessera checkpoint inspect` and `verify`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/report.h"
#include "tessera/checkpoint.h"

namespace tessera::cli {

namespace {

// Null where an earlier build saved, or another version.
nlohmann::json stored_numerics(const std::string& text) try {
  return text.empty() ? nlohmann::json() : numerics_json(numerics_of_text(text));
} catch (const UsageError&) {
  return {};
}

nlohmann::json to_json(const CheckpointInfo& info, bool verified) {
  nlohmann::json files = nlohmann::json::array();
  for (const CheckpointInfo::File& file : info.files)
    files.push_back(
        {{"name", file.name}, {"rank", file.rank}, {"bytes", file.bytes}, {"buffers", file.buffers}});
  const std::optional<LossScaleState>& scaler = info.counters.loss_scaler;
  return {{"path", info.path.string()},
          {"step", info.state.step},
          {"samples", info.state.samples},
          {"configuration", info.state.configuration},
          {"data", info.state.data},
          {"numerics", stored_numerics(info.state.numerics)},
          {"steps_applied", info.counters.steps_applied},
          {"tokens", info.state.tokens},
          {"loss_scale", scaler ? nlohmann::json(scaler->scale) : nlohmann::json()},
          {"mesh",
           {{"pipeline", info.mesh.pipeline},
            {"replicate", info.mesh.replicate},
            {"shard", info.mesh.shard},
            {"tensor", info.mesh.tensor}}},
          {"placements",
           {{"parameters", name_of(info.placements.parameters)},
            {"gradients", name_of(info.placements.gradients)},
            {"optimizer_state", name_of(info.placements.optimizer_state)}}},
          {"layout", info.layout},
          {"units", info.units},
          {"parameter_numel", info.parameter_numel},
          {"files", std::move(files)},
          {"problems", info.problems},
          {"verified", verified}};
}

}  // namespace

int inspect_command(const std::string& path, bool verify, ResultFile& file) {
  check_outside({file.named()}, path);
  file.open();
  const CheckpointInfo info = inspect_checkpoint(path, verify);
  fmt::print("checkpoint  {}\n", info.path.string());
  fmt::print("step        {} ({} applied, {} samples)\n", info.state.step, info.counters.steps_applied,
             count(info.state.samples));
  if (!info.state.data.empty()) fmt::print("data        {}\n", info.state.data);
  fmt::print("mesh        {}\n", to_string(info.mesh));
  fmt::print("placement   parameters {}, gradients {}, optimizer state {}\n",
             name_of(info.placements.parameters), name_of(info.placements.gradients),
             name_of(info.placements.optimizer_state));
  fmt::print("model       {} parameters in {} units, layout {}\n", count(info.parameter_numel), info.units,
             info.layout);
  for (const CheckpointInfo::File& one : info.files)
    fmt::print("file        {}  {}  {} buffers{}\n", one.name, mib(one.bytes), one.buffers,
               verify ? ", verified" : "");
  for (const std::string& problem : info.problems) fmt::print("problem     {}\n", problem);
  file.write(to_json(info, verify));
  return 0;
}

}  // namespace tessera::cli
