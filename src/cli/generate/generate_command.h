// `tessera generate`: continues a prompt, with keys and values of what was read kept.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/cli/inference.h"
#include "src/cli/report.h"
#include "tessera/sampling.h"

namespace tessera::cli {

struct GenerateArguments {
  InferenceArguments model;
  std::optional<std::string> prompt;
  std::string prompt_file;             // "-": the standard input
  bool no_prefix = false;              // the tokenizer's own tokens are not put before the prompt
  bool special = false;                // special tokens that the prompt spells are found
  std::optional<std::int64_t> tokens;  // to make; by default 256, or what the context leaves
  std::optional<std::int64_t> length;  // of the cache; by default prompt and tokens
  std::int64_t prompt_rows = 256;      // tokens of the prompt that are read at once
  Sampling sampling;
  std::vector<std::string> stops;  // words before which the text ends
  std::vector<std::string> ends;   // tokens that end the text; by default the model's
  bool no_end = false;
};

void add_generate_options(CLI::App& command, GenerateArguments& arguments);

int generate_command(const GenerateArguments& arguments, ResultFile& result);

}  // namespace tessera::cli
