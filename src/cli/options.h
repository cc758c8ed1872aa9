// What options of several commands have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "src/cli/files.h"

namespace tessera::cli {

// A path to write to.
inline const CLI::Validator kOutput = {[](const std::string& path) { return why_no_output(path); }, ""};

}  // namespace tessera::cli
