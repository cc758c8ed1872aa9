// Reads fields of JSON objects. Every message names the field.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tessera::text {

// The field, or null where it is missing or null.
const nlohmann::json* find_field(const nlohmann::json& object, std::string_view key);
// Throw UsageError if the field has another type, or if it is missing and there is no default.
std::string string_field(const nlohmann::json& object, std::string_view key);
std::string string_field(const nlohmann::json& object, std::string_view key, const std::string& missing);
bool bool_field(const nlohmann::json& object, std::string_view key, bool missing);
const nlohmann::json& list_field(const nlohmann::json& object, std::string_view key);
std::string string_of(const nlohmann::json& value, std::string_view what);
std::int64_t count_of(const nlohmann::json& value, std::string_view what);  // from 0 to 2^53

// Calls use(part) for the object itself, or, if its type is "Sequence", for each part of its list `key`, in
// order. Nothing is called for null. `part` is an object.
void for_parts(const nlohmann::json* object, std::string_view key,
               const std::function<void(const nlohmann::json& part, const std::string& type)>& use);

// "the decoder 'X' is not supported; supported are ..."
[[noreturn]] void refuse_type(std::string_view role, std::string_view type, std::string_view supported);

}  // namespace tessera::text
