// Parses JSON of safetensors files, which others wrote. No key of an object may occur twice.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

// The message is to follow the name of the text: "is not JSON: ...". It is printable ASCII.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Called for the second of two equal keys, and must throw; the parser alone would silently drop one of them.
// `keys` is the path to the key, which comes last. A list in the path is "".
using KeyTwice = std::function<void(std::span<const std::string> keys)>;

// Takes O(n log n) time for n bytes. Throws JsonError if the text is not JSON, or nests objects and lists
// deeper than `most_depth`.
nlohmann::json parse_unique(std::string_view text, std::size_t most_depth, const KeyTwice& twice);

}  // namespace tessera::checkpoint
