// What the adapter_config.json of a folder that PEFT wrote says of its adapters. Knows no tensors.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "src/cli/config.h"
#include "tessera/lora.h"

namespace tessera::cli {

// Reads it. `family` and `layers` are those of the model that the adapters are of; `key` names the folder,
// for messages. Throws EnvironmentError if the file cannot be read or is no JSON object, and UsageError
// naming the key of adapter_config.json that asks for something else than adapters of one rank and scale on
// the same linear layers of all blocks.
Lora read_stored_adapter(const std::filesystem::path& file, const std::string& family, std::int64_t layers,
                         const std::string& key);

// Fills in the keys of [lora] that the user did not write: by the adapter_config.json in model.adapter. Those
// that the user wrote must agree with it. Where there is none, the one that a run keeps in `run_folder` is
// taken. Adds a note on what was filled in. Throws like read_stored_adapter(), and UsageError naming a key of
// [lora] that disagrees. Call it behind complete_model().
void complete_adapter(Config& config, const std::filesystem::path& run_folder = {});

}  // namespace tessera::cli
