#include "src/cli/kept_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "src/cli/files.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "hugging_face";
constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 30;

constexpr std::array kNames = {kConfigFile,
                               "generation_config.json",
                               kTokenizerFile,
                               "tokenizer.model",
                               "tokenizer_config.json",
                               "special_tokens_map.json",
                               "added_tokens.json",
                               "vocab.json",
                               "merges.txt",
                               "chat_template.json",
                               "chat_template.jinja"};
constexpr std::array kTokens = {"bos_token_id", "eos_token_id", "pad_token_id"};

// `key` names the folder in messages.
KeptFiles read_files(const fs::path& folder, const char* key) {
  KeptFiles files;
  std::uintmax_t bytes = 0;
  for (const char* name : kNames) {
    const fs::path file = folder / name;
    std::error_code error;
    if (!fs::exists(fs::symlink_status(file, error))) continue;
    bytes += fs::file_size(file, error);
    const std::optional<std::string> text = error ? std::nullopt : read_text(file);
    if (!text)
      throw EnvironmentError(fmt::format("{}: cannot read '{}': {}", key, file.string(),
                                         error ? error.message() : std::strerror(errno)));
    if (bytes > kMostBytes)
      throw EnvironmentError(fmt::format("{}: the tokenizer's files in '{}' have more than {} bytes", key,
                                         folder.string(), kMostBytes));
    files[name] = *text;
  }
  return files;
}

// In the folder of a run's checkpoints, or of the one that `folder` is in.
std::optional<fs::path> kept_folder(const fs::path& folder) {
  if (folder.empty()) return std::nullopt;
  std::error_code error;
  for (const fs::path& run : {folder, fs::absolute(folder / ".").parent_path().parent_path()})
    if (fs::is_directory(run / kFolder, error)) return run / kFolder;
  return std::nullopt;
}

void write_synced(const fs::path& file, const std::string& text) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  bool good = descriptor >= 0;
  for (std::size_t done = 0; good && done < text.size();) {
    const ::ssize_t written = ::write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    good = written >= 0;
    done += good ? static_cast<std::size_t>(written) : 0;
  }
  good = good && ::fsync(descriptor) == 0;
  const int why = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!good) throw fs::filesystem_error("cannot write", file, std::error_code(why, std::generic_category()));
}

}  // namespace

KeptFiles read_kept_files(const fs::path& weights, const char* key) {
  std::error_code error;
  return read_files(fs::is_directory(weights, error) ? weights : weights.parent_path(), key);
}

std::optional<KeptFiles> kept_files(const fs::path& folder) {
  const std::optional<fs::path> kept = kept_folder(folder);
  if (!kept) return std::nullopt;
  KeptFiles files = read_files(*kept, "run.checkpoint");
  if (std::optional<std::string> text = read_text(*kept / kAdapterFile))
    files[kAdapterFile] = *std::move(text);
  return files;
}

KeptFiles files_to_hand_on(const fs::path& folder, const fs::path& weights, const fs::path& adapter) {
  if (!folder.empty())
    if (std::optional<KeptFiles> files = kept_files(folder)) return *std::move(files);
  KeptFiles files = weights.empty() ? KeptFiles() : read_kept_files(weights);
  if (adapter.empty()) return files;
  const std::optional<std::string> text = read_text(adapter / kAdapterFile);
  if (!text)
    throw EnvironmentError(fmt::format("model.adapter: cannot read '{}': {}",
                                       (adapter / kAdapterFile).string(), std::strerror(errno)));
  files[kAdapterFile] = *text;
  return files;
}

void add_tokenizer_of_data(KeptFiles& files, const fs::path& data) {
  for (const char* name : {kTokenizerFile, "tokenizer.model", "vocab.json"})
    if (files.contains(name)) return;
  const fs::path folder = data.parent_path(), file = folder / kTokenizerFile;
  std::error_code error;
  if (!fs::exists(folder / "data.json", error) || !fs::exists(file, error)) return;
  std::optional<std::string> text = read_text(file);
  if (!text)
    throw EnvironmentError(
        fmt::format("data.train: cannot read '{}': {}", file.string(), std::strerror(errno)));
  files[kTokenizerFile] = *std::move(text);
}

namespace {

std::optional<fs::path> kept_file(const fs::path& folder, const char* name) {
  const std::optional<fs::path> kept = kept_folder(folder);
  std::error_code error;
  if (!kept || !fs::exists(*kept / name, error)) return std::nullopt;
  return *kept / name;
}

}  // namespace

std::optional<fs::path> kept_config_file(const fs::path& folder) { return kept_file(folder, kConfigFile); }
std::optional<fs::path> kept_adapter_file(const fs::path& folder) { return kept_file(folder, kAdapterFile); }

void keep_files(const fs::path& folder, const KeptFiles& files) try {
  const fs::path whole = folder / kFolder, temporary = folder / (std::string(".") + kFolder + ".tmp");
  fs::remove_all(temporary);
  fs::remove_all(whole);
  if (files.empty()) return;
  fs::create_directories(temporary);
  for (const auto& [name, text] : files) write_synced(temporary / name, text);
  fs::rename(temporary, whole);
} catch (const fs::filesystem_error& error) {
  throw EnvironmentError(
      fmt::format("run.checkpoint: cannot write '{}': {}", error.path1().string(), error.code().message()));
}

std::string with_token_ids(const std::string& own, const KeptFiles& files) {
  const auto kept = files.find(kConfigFile);
  if (kept == files.end()) return own;
  const nlohmann::json theirs = nlohmann::json::parse(kept->second, nullptr, false);
  if (!theirs.is_object()) return own;
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(own);
  for (const char* name : kTokens) {
    // A missing key has the default of the transformers library, there and in the export.
    if (theirs.contains(name))
      config[name] = theirs.at(name);
    else
      config.erase(name);
  }
  return config.dump(2) + "\n";
}

}  // namespace tessera::cli
