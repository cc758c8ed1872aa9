#include "src/cli/prepare/documents.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <string_view>
#include <utility>

#include "src/cli/output.h"
#include "src/cli/prepare/text_lines.h"

namespace tessera::cli {

struct Documents::Impl {
  std::string text_of(std::string_view line) {
    simdjson::dom::element whole, value;
    if (const simdjson::error_code error = parser.parse(line.data(), line.size()).get(whole))
      text.refuse(fmt::format("is no JSON: {}", simdjson::error_message(error)));
    if (!whole.is_object()) text.refuse("is no JSON object");
    if (whole.at_key(field).get(value) != simdjson::SUCCESS)
      text.refuse(fmt::format("has no field '{}'; --field names the one that has the text", escaped(field)));
    std::string_view found;
    if (value.get_string().get(found) != simdjson::SUCCESS)
      text.refuse(fmt::format("has a field '{}' that is no text", escaped(field)));
    return std::string(found);
  }

  std::string field;
  bool lines;
  TextLines text;
  bool done = false;
  simdjson::dom::parser parser = simdjson::dom::parser();
};

Documents::Documents(const std::string& path, std::string field, const char* command)
    : impl_(new Impl{
          .field = std::move(field), .lines = is_named_json_lines(path), .text = TextLines(path, command)}) {}
Documents::~Documents() = default;

std::optional<std::string> Documents::next() {
  if (!impl_->lines) {
    if (std::exchange(impl_->done, true)) return std::nullopt;
    std::string whole = impl_->text.rest();
    return whole.empty() ? std::nullopt : std::optional(std::move(whole));
  }
  while (const std::optional<std::string_view> line = impl_->text.next()) {
    std::string text = impl_->text_of(*line);
    if (!text.empty()) return text;
  }
  return std::nullopt;
}

std::int64_t Documents::consumed() const { return impl_->text.consumed(); }

}  // namespace tessera::cli
