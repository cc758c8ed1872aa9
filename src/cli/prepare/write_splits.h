// The second stage of a preparation: the documents of all parts, in their final order, as token files.
#pragma once

#include <filesystem>
#include <span>

#include "src/cli/prepare/parts.h"
#include "src/cli/prepare/prepare.h"

namespace tessera::cli {

// Writes the files of both sides of the split into the folder of the result.
Prepared write_splits(const PrepareOptions& options, std::span<const Part> parts,
                      const std::filesystem::path& parts_folder, std::int64_t vocabulary,
                      std::int32_t end_of_text);

}  // namespace tessera::cli
