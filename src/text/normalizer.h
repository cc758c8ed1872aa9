// What a tokenizer does to a text before it splits it into words.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/text/regex.h"

namespace tessera::text {

class Normalizer {
 public:
  // From the "normalizer" of a tokenizer.json; null for none. Throws UsageError naming a type that is not
  // supported.
  static Normalizer read(const nlohmann::json* object);

  bool is_empty() const { return steps_.empty(); }
  // `text` must be UTF-8, and stays so.
  void apply(std::string& text, RegexScratch& scratch) const {
    for (const Step& step : steps_) step(text, scratch);
  }

 private:
  using Step = std::function<void(std::string& text, RegexScratch& scratch)>;
  void add(const nlohmann::json& part, const std::string& type);

  std::vector<Step> steps_;
};

// A {"String": ...} or {"Regex": ...} in the field "pattern".
Regex read_pattern(const nlohmann::json& object);
std::string replace_all(const Regex& regex, std::string_view text, std::string_view content,
                        RegexScratch& scratch);

}  // namespace tessera::text
