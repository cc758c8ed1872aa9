#include "src/cli/places.h"

#include <fmt/format.h>

#include <filesystem>

#include "src/cli/output.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

namespace fs = std::filesystem;

// Also of files that are not there yet.
bool same(const std::string& a, const std::string& b) {
  std::error_code none;
  if (a.empty() || b.empty()) return false;
  return fs::equivalent(a, b, none) ||
         fs::weakly_canonical(fs::absolute(a), none) == fs::weakly_canonical(fs::absolute(b), none);
}

std::string folder_of(const std::string& path) {
  return path.empty() ? path : fs::absolute(path).parent_path().string();
}

// Pipes and terminals take what several write.
bool is_file(const std::string& path) {
  std::error_code none;
  return !fs::exists(path, none) || fs::is_regular_file(path, none);
}

void refuse(const NamedFile& output, const std::string& input) {
  throw UsageError(
      fmt::format("{}: '{}' is {}, and would be written over; name another", output.key, output.path, input));
}

// Each is a file, or a folder of files with the names that all such folders have.
void check_weights(const std::string& to, const std::string& weights) {
  if (same(folder_of(to), weights) || same(to, folder_of(weights)))
    refuse({"run.export", to}, fmt::format("where model.weights, '{}', are read", weights));
}

}  // namespace

void check_apart(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const NamedFile& output = outputs[i];
    for (const NamedFile& input : inputs)
      if (same(output.path, input.path)) refuse(output, "read as " + input.key);
    for (std::size_t j = 0; j < i; ++j)
      if (same(output.path, outputs[j].path) && is_file(output.path))
        refuse(output, outputs[j].key + ", too");
  }
}

void check_apart(const Config& config, const std::string& json, std::vector<NamedFile> inputs) {
  const RunConfig& run = config.run;
  inputs.push_back({"model.weights", config.model.weights});
  check_apart({{"run.metrics", run.metrics},
               {"run.trace", run.trace},
               {"run.export", run.export_path},
               {"--json", json}},
              inputs);
  check_weights(run.export_path, config.model.weights);
}

void check_places(const RunConfig& run) {
  if (!run.checkpoint.empty()) check_can_write("run.checkpoint", run.checkpoint);
  if (run.export_path.empty()) return;
  const bool one_file = run.export_path.ends_with(".safetensors");
  check_can_write("run.export", one_file ? folder_of(run.export_path) : run.export_path);
}

}  // namespace tessera::cli
