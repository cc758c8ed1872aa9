// `tessera evaluate`: loss, perplexity and bits per byte of text, and the accuracy of choices.
#pragma once

#include <string>
#include <vector>

#include "src/cli/inference.h"
#include "src/cli/report.h"

namespace tessera::cli {

struct EvaluateArguments {
  InferenceArguments model;
  std::vector<std::string> files;  // the first may be the configuration, by its name
  std::string field = "text";      // of JSON lines
  std::int64_t stride = 0;         // tokens; 0: run.length
  bool choices = false;            // files are multiple-choice questions
  std::string between = " ";       // between context and choice
  bool no_prefix = false;
};

void add_evaluate_options(CLI::App& command, EvaluateArguments& arguments);

int evaluate_command(const EvaluateArguments& arguments, ResultFile& result);

}  // namespace tessera::cli
