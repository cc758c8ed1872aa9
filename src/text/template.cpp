#include "src/text/template.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "src/text/json_fields.h"
#include "tessera/error.h"

namespace tessera::text {

namespace {

constexpr const char* kSupported =
    "TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing and Sequence";

std::int32_t id_from(const nlohmann::json& value) {
  const std::int64_t id = count_of(value, "id");
  if (id > std::numeric_limits<std::int32_t>::max())
    throw UsageError(fmt::format("the id {} is too large", id));
  return static_cast<std::int32_t>(id);
}

const nlohmann::json& require_field(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json* field = find_field(object, key);
  if (field == nullptr) throw UsageError(fmt::format("the post-processor has no '{}'", key));
  return *field;
}

// The ids of a special token of a template.
void append_ids(const nlohmann::json& part, const std::string& name, std::vector<std::int32_t>& ids) {
  for (const nlohmann::json& id :
       list_field(require_field(require_field(part, "special_tokens"), name), "ids"))
    ids.push_back(id_from(id));
}

// {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids":
// [1]}}}
Template read_template(const nlohmann::json& part) {
  Template result;
  bool is_behind = false;
  for (const nlohmann::json& piece : list_field(part, "single")) {
    if (const nlohmann::json* special = find_field(piece, "SpecialToken")) {
      append_ids(part, string_field(*special, "id"), is_behind ? result.behind : result.before);
      continue;
    }
    if (is_behind || string_field(require_field(piece, "Sequence"), "id") != "A")
      throw UsageError("the template of the post-processor does not have the text once");
    is_behind = true;
  }
  if (!is_behind) throw UsageError("the template of the post-processor does not have the text");
  return result;
}

// ["<s>", 0]
std::int32_t named_id(const nlohmann::json& part, const char* key) {
  const nlohmann::json& pair = list_field(part, key);
  if (pair.size() != 2) throw UsageError(fmt::format("'{}' is not a token and its id", key));
  return id_from(pair[1]);
}

Template read_part(const nlohmann::json& part, const std::string& type) {
  if (type == "ByteLevel") return {};  // it moves offsets only
  if (type == "TemplateProcessing") return read_template(part);
  if (type == "RobertaProcessing" || type == "BertProcessing")
    return {.before = {named_id(part, "cls")}, .behind = {named_id(part, "sep")}};
  refuse_type("post-processor", type, kSupported);
}

}  // namespace

Template Template::read(const nlohmann::json* object) {
  Template result;
  for_parts(object, "processors", [&](const nlohmann::json& part, const std::string& type) {
    const Template outer = read_part(part, type);
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.behind.insert(result.behind.end(), outer.behind.begin(), outer.behind.end());
  });
  return result;
}

}  // namespace tessera::text
