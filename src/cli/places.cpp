#include "src/cli/places.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <span>

#include "src/cli/kept_files.h"
#include "src/cli/output.h"
#include "tessera/error.h"
#include "tessera/machine.h"

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

// Pipes, terminals and the standard output take what several write.
bool is_file(const std::string& path) {
  std::error_code none;
  if (is_standard_output(path)) return false;
  return !fs::exists(path, none) || fs::is_regular_file(path, none);
}

void refuse(const NamedFile& output, const std::string& input) {
  throw RefusedOutput(
      fmt::format("{}: '{}' is {}, and would be written over; name another", output.key, output.path, input));
}

// What is read of model.weights, which name a file, an index of files beside it, or their folder.
std::vector<NamedFile> weight_files(const std::string& weights) {
  if (weights.empty()) return {};
  std::vector<NamedFile> files{{"model.weights", weights}};
  std::error_code none;
  const bool whole_folder = fs::is_directory(weights, none);
  const fs::path folder = whole_folder ? weights : folder_of(weights);
  if (whole_folder || weights.ends_with(".json")) {
    for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none))
      files.push_back({"model.weights", entry->path().string()});
  } else {
    files.push_back({"model.weights", (folder / kConfigFile).string()});
  }
  return files;
}

// What `key` names, be it a pattern, and whether it is read or not.
void add_data(std::vector<NamedFile>& files, const char* key, const std::string& pattern) {
  files.push_back({key, pattern});
  glob_t found = {};
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    for (const char* file : std::span(found.gl_pathv, found.gl_pathc)) files.push_back({key, file});
  ::globfree(&found);
}

std::vector<NamedFile> inputs_of(const Config& config, const std::string& path) {
  std::vector<NamedFile> inputs = weight_files(config.model.weights);
  for (const char* name : {"", kAdapterFile, "adapter_model.safetensors"})
    if (const std::string& folder = config.model.adapter; !folder.empty())
      inputs.push_back({"model.adapter", (fs::path(folder) / name).string()});
  inputs.push_back({"the configuration", path});
  add_data(inputs, "data.train", config.data.train);
  add_data(inputs, "data.validation", config.data.validation);
  return inputs;
}

}  // namespace

void check_apart(const Config& config, const std::string& path, const std::vector<NamedFile>& outputs) {
  const std::vector<NamedFile> inputs = inputs_of(config, path);
  const RunConfig& run = config.run;
  std::vector<NamedFile> all = {
      {"run.metrics", run.metrics}, {"run.trace", run.trace}, {"run.export", run.export_path}};
  std::ranges::copy(outputs, std::back_inserter(all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const NamedFile& output = all[i];
    for (const NamedFile& input : inputs)
      if (same(output.path, input.path)) refuse(output, "read as " + input.key);
    for (std::size_t j = 0; j < i; ++j)
      if (same(output.path, all[j].path) && is_file(output.path)) refuse(output, all[j].key + ", too");
  }
}

void check_outside(const std::vector<NamedFile>& outputs, const std::string& checkpoint) {
  std::error_code none;
  fs::path folder = fs::weakly_canonical(fs::absolute(checkpoint), none);
  if (!folder.has_filename()) folder = folder.parent_path();  // of a slash at the end
  const auto of_a_run = [&](const fs::path& path) { return fs::is_regular_file(path / "latest", none); };
  if (!of_a_run(folder) && of_a_run(folder.parent_path())) folder = folder.parent_path();
  for (const NamedFile& output : outputs) {
    if (output.path.empty()) continue;
    const fs::path inside = fs::weakly_canonical(fs::absolute(output.path), none).lexically_relative(folder);
    if (!inside.empty() && *inside.begin() != "..")
      throw RefusedOutput(
          fmt::format("{}: '{}' lies in '{}', where checkpoints are read; name a place elsewhere", output.key,
                      output.path, folder.string()));
  }
}

void check_export_place(const char* key, const std::string& to, const Config& config) {
  const std::string &weights = config.model.weights, &adapter = config.model.adapter;
  // Each is a file, or a folder of files with the names that all such folders have.
  if (same(to, weights) || same(folder_of(to), weights) || same(to, folder_of(weights)))
    refuse({key, to}, fmt::format("where model.weights, '{}', are read", weights));
  if (same(to, adapter)) refuse({key, to}, fmt::format("where model.adapter, '{}', is read", adapter));
  std::error_code none;
  if (!to.empty() && !exports_adapter(config) && fs::exists(fs::path(to) / kAdapterFile, none))
    throw RefusedOutput(
        fmt::format("{}: '{}' has an {}: who loads the folder would add that adapter to the "
                    "weights; name another folder",
                    key, to, kAdapterFile));
  if (is_one_file(to) && fs::is_directory(to, none))
    throw RefusedOutput(fmt::format(
        "{}: '{}' is a folder, and ends as the name of a file; name a file in it, or another folder", key,
        to));
}

void check_places(const RunConfig& run) {
  if (!run.checkpoint.empty()) check_can_write("run.checkpoint", run.checkpoint);
  if (!run.tensorboard.empty()) check_can_write("run.tensorboard", run.tensorboard);
  if (run.export_path.empty()) return;
  check_can_write("run.export", is_one_file(run.export_path) ? folder_of(run.export_path) : run.export_path);
}

void check_disk_directory(const EngineOptions& engine, const Communicator& world) {
  if (!engine.strategy.offload.on_disk()) return;
  const std::string& directory = engine.disk_directory;
  std::error_code error;
  const fs::file_status there = fs::status(directory, error);
  try {
    if (!fs::is_directory(there))
      throw EnvironmentError(
          fmt::format("offload.directory: '{}' is {}; name an existing directory on a local disk", directory,
                      fs::exists(there) ? "no directory" : "not there"));
    check_can_write("offload.directory", directory);
  } catch (const EnvironmentError& refused) {
    if (!world) throw;
    throw EnvironmentError(fmt::format("rank {} on {}: {}", world.rank(), host_name(), refused.what()));
  }
}

}  // namespace tessera::cli
