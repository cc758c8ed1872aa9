// The tokens that a tokenizer puts before and behind a text, such as "begin of text".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace tessera::text {

struct Template {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;

  // From the "post_processor" of a tokenizer.json; null for none. Throws UsageError naming a type that is not
  // supported.
  static Template read(const nlohmann::json* object);
};

}  // namespace tessera::text
