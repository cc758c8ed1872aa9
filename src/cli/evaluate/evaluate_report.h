// What `tessera evaluate` prints and writes.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/cli/evaluate/evaluated_files.h"
#include "src/cli/evaluate/questions.h"

namespace tessera::cli {

// The measures of a text.
struct TextMeasures {
  std::string name;
  std::int64_t documents = 0, tokens = 0;
  std::optional<std::int64_t> bytes = 0;
  Score score;

  // Mean loss of the tokens that count, exp() of that, and the loss of all in bits for each byte of text.
  // None where there is nothing to divide by.
  std::optional<double> loss() const;
  std::optional<double> perplexity() const;
  std::optional<double> bits_per_byte() const;
  TextMeasures& operator+=(const TextMeasures& other);
};

// A row for each, and one for all of them if there are several.
void print_measures(std::span<const TextMeasures> measures);
nlohmann::json to_json(std::span<const TextMeasures> measures);

void print_accuracies(std::span<const Questions> files, std::span<const Accuracy> accuracies);
// `scores` are those of all pieces of all files, file by file.
nlohmann::json to_json(std::span<const Questions> files, std::span<const Accuracy> accuracies,
                       std::span<const Score> scores);

}  // namespace tessera::cli
