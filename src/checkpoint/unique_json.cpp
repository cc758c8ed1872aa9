#include "src/checkpoint/unique_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

// Looks at the keys as they come and keeps nothing else. Not a callback of json::parse(), which goes through
// all of an object that stands around each that ends: a header of many tensors would take hours.
class KeyCheck final : public nlohmann::json_sax<json> {
 public:
  KeyCheck(std::size_t most_depth, const KeyTwice& twice) : most_depth_(most_depth), twice_(twice) {}

  bool start_object(std::size_t /*elements*/) override { return open(); }
  bool start_array(std::size_t /*elements*/) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    path_.back() = name;
    if (!seen_.back().insert(name).second) twice_(path_);
    return true;
  }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  // json::parse() tells it.
  bool parse_error(std::size_t /*place*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  bool open() {
    if (path_.size() == most_depth_)
      throw JsonError(fmt::format("is nested too deeply; at most {} are allowed", most_depth_));
    path_.emplace_back();
    seen_.emplace_back();
    return true;
  }
  bool close() {
    path_.pop_back();
    seen_.pop_back();
    return true;
  }

  const std::size_t most_depth_;
  const KeyTwice& twice_;
  // Of what is open, from the outside in: the last key, and all of them.
  std::vector<std::string> path_;
  std::vector<std::set<std::string>> seen_;
};

// The parser quotes what it read last, be it text or not.
std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text)
    if (c >= ' ' && c <= '~')
      result += c;
    else
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return result;
}

}  // namespace

json parse_unique(std::string_view text, std::size_t most_depth, const KeyTwice& twice) {
  KeyCheck check(most_depth, twice);
  try {
    json::sax_parse(text, &check);
    return json::parse(text);
  } catch (const json::exception& error) {
    throw JsonError(fmt::format("is not JSON: {}", printable(error.what())));
  }
}

}  // namespace tessera::checkpoint
