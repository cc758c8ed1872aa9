#include "src/cli/prepare/documents.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <string_view>
#include <utility>

#include "src/cli/output.h"
#include "src/cli/prepare/text_lines.h"
#include "src/cli/prepare/text_names.h"
#include "tessera/error.h"

namespace tessera::cli {

struct Documents::Impl {
  // `option` is the one that names the field.
  std::string text_of(const simdjson::dom::element& line, const std::string& field, const char* option,
                      const char* what) {
    simdjson::dom::element value;
    if (line.at_key(field).get(value) != simdjson::SUCCESS)
      text.refuse(
          fmt::format("has no field '{}'; {} names the one that has the {}", escaped(field), option, what));
    std::string_view found;
    if (value.get_string().get(found) != simdjson::SUCCESS)
      text.refuse(fmt::format("has a field '{}' that is no text", escaped(field)));
    return std::string(found);
  }

  Document parse(std::string_view line) {
    simdjson::dom::element whole;
    if (const simdjson::error_code error = parser.parse(line.data(), line.size()).get(whole))
      text.refuse(fmt::format("is no JSON: {}", simdjson::error_message(error)));
    if (!whole.is_object()) text.refuse("is no JSON object");
    if (!fields.prompted()) return {.prompt = {}, .text = text_of(whole, fields.text, "--field", "text")};
    std::string prompt = text_of(whole, fields.prompt, "--prompt-field", "prompt");
    return {.prompt = std::move(prompt), .text = text_of(whole, fields.answer, "--answer-field", "answer")};
  }

  DocumentFields fields;
  bool lines;
  TextLines text;
  bool done = false;
  simdjson::dom::parser parser = simdjson::dom::parser();
};

Documents::Documents(const std::string& path, DocumentFields fields, const char* command)
    : impl_(new Impl{.fields = std::move(fields),
                     .lines = is_named_json_lines(path),
                     .text = TextLines(path, command)}) {
  if (impl_->fields.prompted() && !impl_->lines)
    throw UsageError(fmt::format(
        "{}: '{}' is text by its name, and --prompt-field names a field; prompts and answers come from JSON "
        "lines (.jsonl, .ndjson)",
        command, escaped(path)));
}
Documents::~Documents() = default;

std::optional<Document> Documents::next() {
  if (!impl_->lines) {
    if (std::exchange(impl_->done, true)) return std::nullopt;
    Document whole{.prompt = {}, .text = impl_->text.rest()};
    return whole.text.empty() ? std::nullopt : std::optional(std::move(whole));
  }
  while (const std::optional<std::string_view> line = impl_->text.next()) {
    Document document = impl_->parse(*line);
    if (document.bytes() > 0) return document;
  }
  return std::nullopt;
}

std::int64_t Documents::consumed() const { return impl_->text.consumed(); }

}  // namespace tessera::cli
