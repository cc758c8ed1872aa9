// Makes text of the tokens that a model gives.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/text/regex.h"

namespace tessera::text {

class Decoder {
 public:
  // From the "decoder" of a tokenizer.json; null for none, which puts spaces between tokens. Throws
  // UsageError naming a type that is not supported.
  static Decoder read(const nlohmann::json* object);

  std::string decode(std::vector<std::string> tokens, RegexScratch& scratch) const;

 private:
  using Tokens = std::vector<std::string>;
  using Step = std::function<void(Tokens& tokens, RegexScratch& scratch)>;
  void add(const nlohmann::json& part, const std::string& type);

  std::vector<Step> steps_;
  std::string separator_;
};

}  // namespace tessera::text
