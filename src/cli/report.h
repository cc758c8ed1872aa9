// What `plan` and `simulate` both say of a run.
#pragma once

#include <nlohmann/json.hpp>

#include "src/cli/output.h"
#include "src/cli/setup.h"

namespace tessera::cli {

// Model, ranks and step, a line each, to stdout.
void print_model(const Setup& setup);

// Whether what a rank needs keeps within `key`, to stdout; nothing where there is no such budget.
void print_budget(const char* key, std::int64_t budget, std::int64_t needed);

// Commits the file, where there is one.
void write_json(OutputFile& file, const nlohmann::json& result);

}  // namespace tessera::cli
