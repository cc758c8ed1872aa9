// A file's text, whole.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tessera::cli {

// Nothing, and errno set, where it cannot be read.
std::optional<std::string> read_text(const std::filesystem::path& file);

}  // namespace tessera::cli
