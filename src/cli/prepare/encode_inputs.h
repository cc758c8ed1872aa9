// The first stage of a preparation: every document's tokens, in parts.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "src/cli/prepare/parts.h"
#include "src/cli/prepare/prepare.h"
#include "tessera/tokenizer.h"

namespace tessera::cli {

// Encodes what no part in the folder has yet, and returns all parts, in the order of inputs and documents.
std::vector<Part> encode_inputs(const PrepareOptions& options, const Tokenizer& tokenizer,
                                const std::filesystem::path& folder, const PrepareProgress& progress,
                                const std::function<void(const std::string&)>& note);

}  // namespace tessera::cli
