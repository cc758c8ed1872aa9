// What options of several commands have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "src/cli/files.h"

namespace tessera::cli {

// A path to write to.
inline const CLI::Validator kOutput = {[](const std::string& path) { return why_no_output(path); }, ""};

template <class Number>
CLI::Validator number_that(bool (*is_right)(Number), const char* wrong, const char* name) {
  const auto check = [is_right, wrong](const std::string& text) {
    Number value{};
    const bool is = CLI::detail::lexical_cast(text, value) && is_right(value);
    return is ? std::string() : text + " is " + wrong;
  };
  return {check, name};
}

inline const CLI::Validator kRanks = number_that<int>(
    [](int ranks) { return ranks > 0; }, "no number of ranks; give an integer of at least 1", "RANKS");

// May be repeated; of one key the last counts. `before` stands in front of what is given.
inline void add_settings(CLI::App& command, const char* name, const char* help,
                         std::vector<std::string>& settings, const std::string& before = "") {
  const auto set = [&settings, before](const std::string& setting) { settings.push_back(before + setting); };
  command.add_option_function<std::string>(name, set, help)->trigger_on_parse();
}

// --set and --ranks.
inline void add_overrides(CLI::App& command, std::vector<std::string>& settings, int& ranks) {
  add_settings(command, "--set",
               "section.key=value, instead of the file's; may be repeated, of one key the last counts",
               settings);
  command
      .add_option("--ranks", ranks,
                  "how many ranks in all: mesh.shard becomes N / (mesh.pipeline × mesh.replicate)")
      ->check(kRanks);
}

}  // namespace tessera::cli
