// JSON as safetensors has it: what others wrote, in which no key of an object may stand twice.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

// What follows the name of the text: "is not JSON: ...", in printable ASCII.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Of two equal keys the parser would keep one, and lose the other without a word: `twice` is told of the
// second and throws. `keys` lead to it and end with it; of a list there is "".
using KeyTwice = std::function<void(std::span<const std::string> keys)>;

// In time linear in the text but for a logarithm. JsonError where it is no JSON, or nests objects and lists
// deeper than `most_depth`.
nlohmann::json parse_unique(std::string_view text, std::size_t most_depth, const KeyTwice& twice);

}  // namespace tessera::checkpoint
