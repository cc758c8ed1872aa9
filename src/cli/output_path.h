// What is no path to write to.
#pragma once

#include <string>

namespace tessera::cli {

// Why it is none; empty where it is one. "-" is what other tools take for the standard output, and would
// become a file.
std::string why_no_output(const std::string& path);

}  // namespace tessera::cli
