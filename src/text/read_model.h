// Reads the "model" and "added_tokens" of a tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "src/text/added_tokens.h"
#include "src/text/bpe_model.h"

namespace tessera::text {

// Both throw UsageError for what is missing, of a wrong type, or not supported.
BpeConfig read_model(const nlohmann::json& file, bool byte_level);
std::vector<AddedToken> read_added_tokens(const nlohmann::json& file);

}  // namespace tessera::text
