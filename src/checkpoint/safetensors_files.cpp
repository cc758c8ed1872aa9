#include "src/checkpoint/safetensors_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "src/checkpoint/unique_json.h"
#include "tessera/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

[[noreturn]] void refuse_index(const std::string& source, const std::string& what) {
  throw EnvironmentError(fmt::format("safetensors index '{}': {}", source, what));
}

[[noreturn]] void cannot_look_at(const fs::path& path, const std::error_code& error) {
  throw EnvironmentError(
      fmt::format("cannot look for safetensors at '{}': {}", path.string(), error.message()));
}

fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) cannot_look_at(path, error);
  return status;
}

// What a folder holds: its index, its one file, or nothing that can be told.
fs::path model_in(const fs::path& folder) {
  for (const char* name : {kIndexName, kWholeName})
    if (fs::exists(status_of(folder / name))) return folder / name;
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".safetensors") found.push_back(entry->path());
  if (error) cannot_look_at(folder, error);
  if (found.size() == 1) return found.front();
  throw UsageError(fmt::format("folder '{}' has neither {} nor {}, and {} other .safetensors files; name one",
                               folder.string(), kIndexName, kWholeName, found.size()));
}

json parse_index_text(std::string_view text, const std::string& source) {
  constexpr std::size_t kMostDepth = 100;  // of its metadata, which may be anything
  try {
    return parse_unique(text, kMostDepth, [&](std::span<const std::string> keys) {
      const bool tensor = keys.size() == 2 && keys[0] == "weight_map";
      refuse_index(source, fmt::format("{} '{}' stands twice in it", tensor ? "tensor" : "key", keys.back()));
    });
  } catch (const JsonError& error) {
    refuse_index(source, fmt::format("it {}", error.what()));
  }
}

// The system would open what stands before a NUL.
bool is_beside(const std::string& name) {
  const fs::path path = name;
  return !path.empty() && path.filename() == path && path != "." && path != ".." &&
         name.find('\0') == name.npos;
}

std::string index_text(const fs::path& path) {
  const FileReader reader(path, "safetensors index");
  if (reader.bytes() > kMostHeaderBytes)
    refuse_index(path.string(),
                 fmt::format("it has {} bytes; at most {} are allowed", reader.bytes(), kMostHeaderBytes));
  std::string text(static_cast<std::size_t>(reader.bytes()), '\0');
  reader.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

std::string encode_index(const std::map<std::string, std::string>& files, std::int64_t total_bytes) {
  return json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", files}}.dump(2) + "\n";
}

std::map<std::string, std::string> parse_index(std::string_view text, const std::string& source) {
  const json index = parse_index_text(text, source);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    refuse_index(source, "it has no weight_map");
  std::map<std::string, std::string> result;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) refuse_index(source, fmt::format("tensor '{}' is in no named file", name));
    if (!is_beside(file.get<std::string>()))
      refuse_index(source,
                   fmt::format("tensor '{}' is in {}, which is no file beside it", name, file.dump()));
    result[name] = file.get<std::string>();
  }
  return result;
}

SafetensorsFile::SafetensorsFile(fs::path path, LastFile& last) : path_(std::move(path)), last_(last) {}

const FileReader& SafetensorsFile::opened() const {
  if (last_.file == this) return *last_.reader;
  last_ = {};  // never two at once
  auto reader = std::make_unique<const FileReader>(path_, kSafetensors);
  if (identity_ && reader->identity() != *identity_)
    throw EnvironmentError(fmt::format(
        "safetensors file '{}' was changed after its header was read: leave it as it is while it is read",
        path_.string()));
  identity_ = reader->identity();
  last_ = {.file = this, .reader = std::move(reader)};
  return *last_.reader;
}

SafetensorsFiles::SafetensorsFiles(const fs::path& path) {
  const fs::file_status status = status_of(path);
  if (!fs::exists(status))
    throw EnvironmentError(fmt::format("there is no safetensors file or folder '{}'", path.string()));
  const fs::path chosen = fs::is_directory(status) ? model_in(path) : path;
  source_ = chosen.string();
  if (chosen.extension() == ".json")
    open_index(chosen);
  else
    open_file(chosen, nullptr);
}

void SafetensorsFiles::open_index(const fs::path& path) {
  const std::map<std::string, std::string> index = parse_index(index_text(path), source_);
  std::set<std::string> files;
  for (const auto& [name, file] : index) files.insert(file);
  for (const std::string& file : files) open_file(path.parent_path() / file, &index);
  for (const auto& [name, file] : index)
    if (!tensors_.contains(name))
      refuse_index(source_, fmt::format("tensor '{}' is not in '{}'", name, file));
}

void SafetensorsFiles::open_file(const fs::path& path, const std::map<std::string, std::string>* index) {
  const SafetensorsFile& file = files_.emplace_back(path, last_);
  for (TensorEntry& entry : file.tensors()) {
    if (index) {
      const auto found = index->find(entry.name);
      if (found == index->end() || found->second != path.filename().string())
        refuse_index(source_,
                     fmt::format("tensor '{}' of '{}' is {}", entry.name, path.filename().string(),
                                 found == index->end() ? "not in it" : "said to be in " + found->second));
    }
    std::string name = entry.name;
    tensors_.emplace(std::move(name), Tensor{.file = &file, .entry = std::move(entry)});
  }
}

const SafetensorsFiles::Tensor* SafetensorsFiles::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace tessera::checkpoint
