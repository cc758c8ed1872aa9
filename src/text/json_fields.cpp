#include "src/text/json_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tessera/error.h"

namespace tessera::text {

namespace {

constexpr int kMostNested = 20;
constexpr std::int64_t kMostCount = std::int64_t{1} << 53;

using UsePart = std::function<void(const nlohmann::json& part, const std::string& type)>;

void walk_parts(const nlohmann::json& object, std::string_view key, const UsePart& use, int depth) {
  if (depth > kMostNested)
    throw UsageError(fmt::format("'{}' is nested more than {} deep", key, kMostNested));
  const std::string type = string_field(object, "type");
  if (type != "Sequence") return use(object, type);
  for (const nlohmann::json& part : list_field(object, key)) walk_parts(part, key, use, depth + 1);
}

}  // namespace

const nlohmann::json* find_field(const nlohmann::json& object, std::string_view key) {
  if (!object.is_object())
    throw UsageError(fmt::format("an object with '{}' is wanted, not {}", key, object.type_name()));
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string string_of(const nlohmann::json& value, std::string_view what) {
  if (!value.is_string())
    throw UsageError(fmt::format("'{}' is {}; a string is wanted", what, value.type_name()));
  return value.get<std::string>();
}

std::int64_t count_of(const nlohmann::json& value, std::string_view what) {
  if (!value.is_number_integer() || value < 0 || value > kMostCount)
    throw UsageError(fmt::format("'{}' is not a whole number from 0", what));
  return value.get<std::int64_t>();
}

std::string string_field(const nlohmann::json& object, std::string_view key) {
  const nlohmann::json* field = find_field(object, key);
  if (field == nullptr) throw UsageError(fmt::format("'{}' is missing", key));
  return string_of(*field, key);
}

std::string string_field(const nlohmann::json& object, std::string_view key, const std::string& missing) {
  const nlohmann::json* field = find_field(object, key);
  return field == nullptr ? missing : string_of(*field, key);
}

bool bool_field(const nlohmann::json& object, std::string_view key, bool missing) {
  const nlohmann::json* field = find_field(object, key);
  if (field == nullptr) return missing;
  if (!field->is_boolean())
    throw UsageError(fmt::format("'{}' is {}; true or false is wanted", key, field->type_name()));
  return field->get<bool>();
}

const nlohmann::json& list_field(const nlohmann::json& object, std::string_view key) {
  const nlohmann::json* field = find_field(object, key);
  if (field == nullptr || !field->is_array()) throw UsageError(fmt::format("'{}' is not a list", key));
  return *field;
}

void for_parts(const nlohmann::json* object, std::string_view key, const UsePart& use) {
  if (object != nullptr) walk_parts(*object, key, use, 0);
}

void refuse_type(std::string_view role, std::string_view type, std::string_view supported) {
  throw UsageError(fmt::format("the {} '{}' is not supported; supported are {}", role, type, supported));
}

}  // namespace tessera::text
