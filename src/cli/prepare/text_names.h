// What the name of a file says of the text in it.
#pragma once

#include <string_view>

namespace tessera::cli {

// The name without .gz or .zst at its end.
constexpr std::string_view without_compression(std::string_view name) {
  for (const std::string_view end : {".gz", ".zst"})
    if (name.ends_with(end)) name.remove_suffix(end.size());
  return name;
}

// Whether a name is that of a file of JSON lines: it ends in .jsonl or .ndjson, before .gz or .zst.
constexpr bool is_named_json_lines(std::string_view name) {
  name = without_compression(name);
  return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

// Whether it is that of text as it is: neither compressed nor of JSON lines.
constexpr bool is_named_plain_text(std::string_view name) {
  return without_compression(name) == name && !is_named_json_lines(name);
}

}  // namespace tessera::cli
