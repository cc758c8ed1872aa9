// A Config written out: as TOML, as differences, and the documentation of all keys.
#include <fmt/format.h>

#include "src/cli/config_keys.h"

namespace tessera::cli {

namespace {

std::string_view introduction() {
  return R"(# Configuration

A run is described by one TOML file. Every key has a default, so a file names only what it changes; `data.train`
is the one that training needs. On the command line, `--set section.key=value` changes a key after the file is
read; text needs no quotes there. `--ranks N` then makes the world one of N ranks: `mesh.shard` becomes
N / (`mesh.pipeline` × `mesh.replicate`), and is refused where that is no whole number.

An unknown key, a value of the wrong type or outside its range, and values that do not go together are refused
before anything is opened, with the key, the value and what is allowed.

This page is printed by `tessera config`; a test compares the two.
)";
}

std::string section_title(const std::string& section) {
  for (const auto& [name, title] :
       {std::pair<const char*, const char*>{"model", "What is trained."},
        {"data",
         "What it is trained on. A token file has a header of 256 32-bit integers: magic, version and the "
         "count of "
         "tokens, which follow it; the magic is 20240520 and the version 1 for 16-bit tokens, 20240801 and 7 "
         "for "
         "32-bit ones."},
        {"mesh", "How the ranks are arranged; their number is the product."},
        {"strategy", "What is sharded, and when it is gathered and reduced (docs/memory.md)."},
        {"pipeline", "How the chain of units is cut over pipeline ranks, and in which order these run it."},
        {"offload", "What lies elsewhere than on the device between its uses (docs/memory.md)."},
        {"precision", "Types, and loss scaling."},
        {"optimizer", "How a gradient changes the weights."},
        {"schedule", "The learning rate over the steps."},
        {"run", "How long, how much at a time, and what is written."}})
    if (section == name) return title;
  return "";
}

}  // namespace

std::string to_toml(const Config& config) {
  Config copy = config;
  std::string text, section;
  for (const Key& key : keys_of(copy)) {
    if (key.section() != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section());
      section = key.section();
    }
    text += fmt::format("{} = {}\n", key.leaf(), value_text(key));
  }
  return text;
}

std::vector<std::string> differences(const Config& before, const Config& after) {
  Config left = before, right = after;
  const std::vector<Key> old_keys = keys_of(left), new_keys = keys_of(right);
  std::vector<std::string> result;
  for (std::size_t i = 0; i < old_keys.size(); ++i) {
    const std::string was = value_text(old_keys[i]), is = value_text(new_keys[i]);
    if (was != is) result.push_back(fmt::format("{}: {} -> {}", old_keys[i].name, was, is));
  }
  return result;
}

std::string config_markdown() {
  Config defaults;
  std::string text(introduction()), section;
  for (const Key& key : keys_of(defaults)) {
    if (key.section() != section) {
      section = key.section();
      text += fmt::format("\n## [{}]\n\n{}\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n",
                          section, section_title(section));
    }
    text +=
        fmt::format("| `{}` | `{}` | {} | {} |\n", key.leaf(), value_text(key), allowed(key), key.meaning);
  }
  return text;
}

}  // namespace tessera::cli
