// The files of a Hugging Face folder that a run hands on from the weights that it starts from to those that
// it exports: the tokenizer's, generation_config.json, and config.json for the tokens that begin and end a
// text. A run with a folder for checkpoints keeps copies there, in "hugging_face".
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace tessera::cli {

// The names of files in Hugging Face's folders.
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kAdapterFile = "adapter_config.json";  // of PEFT
inline constexpr const char* kTokenizerFile = "tokenizer.json";

using KeptFiles = std::map<std::string, std::string>;  // by name, the bytes

// Reads those in the folder of `weights`; the result is empty if there are none. Throws EnvironmentError
// naming `key`, which names the weights, if one cannot be read, or if together they have more than 1 GiB.
KeptFiles read_kept_files(const std::filesystem::path& weights, const char* key = "model.weights");

// The files that a run keeps; `folder` is that of its checkpoints, or one of the checkpoints in it. Nothing
// if it keeps none. Throws EnvironmentError if one cannot be read.
std::optional<KeptFiles> kept_files(const std::filesystem::path& folder);

// What an export of a run gets: the files that it keeps in `folder`, else those of `weights` and the
// adapter_config.json of `adapter`; empty if there are none. All paths may be empty.
KeptFiles files_to_hand_on(const std::filesystem::path& folder, const std::filesystem::path& weights,
                           const std::filesystem::path& adapter);

// Adds the tokenizer.json in the folder of the token files `data`, if `tessera data prepare` made that folder
// and `files` has no tokenizer. Throws EnvironmentError naming data.train if it cannot be read.
void add_tokenizer_of_data(KeptFiles& files, const std::filesystem::path& data);

// The config.json among them, if there is one; the adapter_config.json of the adapter that the run began
// with.
std::optional<std::filesystem::path> kept_config_file(const std::filesystem::path& folder);
std::optional<std::filesystem::path> kept_adapter_file(const std::filesystem::path& folder);

// Keeps the files in the folder of a run's checkpoints, in place of those of another start: all of them, or
// after a kill none. Throws EnvironmentError naming run.checkpoint.
void keep_files(const std::filesystem::path& folder, const KeptFiles& files);

// The config.json of an export: `own`, with the token ids of the kept config.json.
std::string with_token_ids(const std::string& own, const KeptFiles& files);

}  // namespace tessera::cli
