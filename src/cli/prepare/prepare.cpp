#include "src/cli/prepare/prepare.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/cli/files.h"
#include "src/cli/kept_files.h"
#include "src/cli/output.h"
#include "src/cli/prepare/encode_inputs.h"
#include "src/cli/prepare/write_splits.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kResult = "data.json";
constexpr const char* kParts = "unfinished";
constexpr const char* kSettings = "settings.json";

void check_options(const PrepareOptions& options) {
  if (!(options.validation >= 0.0 && options.validation <= 0.9))
    throw UsageError(
        fmt::format("data prepare: --validation is {}; it must be 0 to 0.9", options.validation));
  if (options.shard_tokens < 1 || options.shard_tokens > 2'000'000'000)
    throw UsageError(
        fmt::format("data prepare: --shard-tokens is {}; it must be 1 to 2000000000", options.shard_tokens));
  const DocumentFields& fields = options.fields;
  if (fields.prompt.empty() != fields.answer.empty())
    throw UsageError(fmt::format("data prepare: --{}-field is '{}' and --{}-field is not given; give both",
                                 fields.prompt.empty() ? "answer" : "prompt",
                                 escaped(fields.prompt.empty() ? fields.answer : fields.prompt),
                                 fields.prompt.empty() ? "prompt" : "answer"));
  if (fields.prompted() && fields.prompt == fields.answer)
    throw UsageError(
        fmt::format("data prepare: --prompt-field and --answer-field are both '{}'; name two fields",
                    escaped(fields.prompt)));
  for (std::size_t k = 0; k < options.inputs.size(); ++k) {
    std::error_code none;
    if (!fs::is_regular_file(options.inputs[k], none))
      throw UsageError(
          fmt::format("data prepare: '{}' is not there, or no file", escaped(options.inputs[k])));
    for (std::size_t before = 0; before < k; ++before)
      if (fs::equivalent(options.inputs[k], options.inputs[before], none))
        throw UsageError(fmt::format("data prepare: '{}' is given twice; give each file once",
                                     escaped(options.inputs[k])));
  }
}

std::int32_t end_of_text(const PrepareOptions& options, const Tokenizer& tokenizer) {
  if (!options.end_of_text.empty()) {
    if (const auto id = tokenizer.id_of(options.end_of_text)) return *id;
    throw UsageError(fmt::format("data prepare: --end-of-text is '{}', which the tokenizer has not",
                                 escaped(options.end_of_text)));
  }
  for (const char* token : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (const auto id = tokenizer.id_of(token)) return *id;
  throw UsageError(
      "data prepare: the tokenizer has none of <|endoftext|>, <|end_of_text|> and </s>; name the token that "
      "ends a text by --end-of-text");
}

fs::path file_of_tokenizer(const std::string& path) {
  return fs::is_directory(path) ? fs::path(path) / kTokenizerFile : fs::path(path);
}

// What decides the parts.
json settings_of(const PrepareOptions& options, const std::string& tokenizer) {
  json inputs = json::array();
  for (const std::string& input : options.inputs)
    inputs.push_back(
        {{"file", fs::absolute(input).lexically_normal().string()}, {"bytes", fs::file_size(input)}});
  return {{"inputs", inputs},
          {"field", options.fields.text},
          {"prompt_field", options.fields.prompt},
          {"answer_field", options.fields.answer},
          {"part_bytes", options.part_bytes},
          {"tokenizer", fmt::format("{:016x}", XXH3_64bits(tokenizer.data(), tokenizer.size()))}};
}

// How messages name a setting.
std::string option_of(const std::string& setting) {
  if (setting == "inputs" || setting == "part_bytes") return setting;
  std::string option = "--" + setting;
  std::ranges::replace(option, '_', '-');
  return option;
}

// Makes the folder of the parts, or finds it with the same settings.
void begin_parts(const fs::path& folder, const json& settings, const std::string& out) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw EnvironmentError(
        fmt::format("data prepare: --out: cannot make '{}': {}", escaped(folder.string()), error.message()));
  if (const std::optional<std::string> text = read_text(folder / kSettings)) {
    const json before = json::parse(*text, nullptr, false);
    for (const auto& [key, value] : settings.items())
      if (!before.is_object() || !before.contains(key) || before[key] != value)
        throw UsageError(fmt::format(
            "data prepare: '{}' has an unfinished preparation with other {}; remove '{}', or name another "
            "folder by --out",
            escaped(out), option_of(key), escaped(folder.string())));
    return;
  }
  OutputFile file("data prepare --out", folder / kSettings);
  file.stream() << settings.dump(2) << "\n";
  file.commit();
}

json to_json(const PreparedSplit& split) {
  return {{"files", split.files},
          {"documents", split.documents},
          {"tokens", split.tokens},
          {"counted", split.counted}};
}

void write_file(const fs::path& path, const std::string& text) {
  OutputFile file("data prepare --out", path);
  file.stream() << text;
  file.commit();
}

// Those that a killed preparation has left.
void remove_partial_files(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::error_code ignored;
    if (entry.path().extension() == ".partial") fs::remove(entry.path(), ignored);
  }
}

// A mistake in the inputs or the options is mended by other inputs or options, which could not take up the
// parts. So none are left in the way.
std::vector<Part> encode(const PrepareOptions& options, const Tokenizer& tokenizer, const fs::path& folder,
                         const PrepareProgress& progress,
                         const std::function<void(const std::string&)>& note) try {
  return encode_inputs(options, tokenizer, folder, progress, note);
} catch (const UsageError&) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  throw;
}

}  // namespace

Prepared prepare(const PrepareOptions& options, const PrepareProgress& progress,
                 const std::function<void(const std::string&)>& note) {
  check_options(options);
  const fs::path out = options.out, folder = out / kParts;
  if (fs::exists(out / kResult))
    throw UsageError(fmt::format(
        "data prepare: '{}' has prepared data already; remove it, or name another folder by --out",
        escaped(options.out)));
  const fs::path file = file_of_tokenizer(options.tokenizer);
  const std::optional<std::string> text = read_text(file);
  if (!text)
    throw EnvironmentError(fmt::format("data prepare: --tokenizer: cannot read '{}': {}",
                                       escaped(file.string()), std::strerror(errno)));
  const Tokenizer tokenizer = Tokenizer::parse(*text, file.string());
  const std::int32_t end = end_of_text(options, tokenizer);
  begin_parts(folder, settings_of(options, *text), options.out);
  const FileLock lock("data prepare --out", (folder / kSettings).string());

  remove_partial_files(out);
  const std::vector<Part> parts = encode(options, tokenizer, folder, progress, note);
  Prepared made = write_splits(options, parts, folder, tokenizer.vocabulary(), end);
  if (made.train.documents == 0) {
    fs::remove_all(folder);
    throw UsageError(
        "data prepare: no document is left to train on: the inputs are empty, or --validation takes all");
  }
  write_file(out / kTokenizerFile, *text);
  write_file(out / kResult, json({{"vocabulary", made.vocabulary},
                                  {"end_of_text", end},
                                  {"text_bytes", made.text_bytes},
                                  {"seed", options.seed},
                                  {"train", to_json(made.train)},
                                  {"validation", to_json(made.validation)}})
                                    .dump(2) +
                                "\n");
  fs::remove_all(folder);
  return made;
}

}  // namespace tessera::cli
