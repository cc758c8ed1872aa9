// The arguments of the examples' programs.
#pragma once

#include <charconv>
#include <climits>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/error.h"

namespace examples {

// The whole number from `least` to `most` that `text` is; UsageError naming `name` where it is none.
inline int whole_number(const std::string& name, const std::string& text, int least, int most = INT_MAX) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most)
    return value;
  const std::string upto = most == INT_MAX ? "" : " to " + std::to_string(most);
  throw tessera::UsageError(name + " is '" + text + "'; a whole number from " + std::to_string(least) + upto +
                            " is needed");
}

inline bool is_help(std::string_view word) { return word == "--help" || word == "-h"; }

// The program's status where it is asked for help, or given fewer than `least` or more than `most` arguments:
// both print `usage`. None where it goes on.
inline std::optional<int> shows_usage(int argc, char** argv, int least, int most, const char* usage) {
  const bool help = argc > 1 && is_help(argv[1]);
  if (!help && argc > least && argc <= most + 1) return std::nullopt;
  std::fputs(usage, help ? stdout : stderr);
  return help ? 0 : 2;
}

}  // namespace examples
