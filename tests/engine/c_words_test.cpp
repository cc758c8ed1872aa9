// Messages to users of C: what they call options and verbs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>

#include "src/engine/c_words.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using c_api::in_words_of_c;

TEST(CWords, OptionsAndVerbsAreThoseOfC) {
  EXPECT_EQ(in_words_of_c("clip.max_norm is 1 and strategy.update is reduced"),
            "options.clip is 1 and options.update is reduced");
  EXPECT_EQ(in_words_of_c("step: no step is running; call begin first"),
            "tessera_step: no step is running; call begin first");
  EXPECT_EQ(in_words_of_c("the program expects begin()"), "the program expects tessera_begin()");
  EXPECT_EQ(in_words_of_c("mesh.shard 2, offload.parameters device"),
            "options.shard 2, options.parameters device");
  EXPECT_EQ(in_words_of_c("strategy.pipeline.chunks is 2"), "options.chunks is 2");
}

TEST(CWords, OtherWordsStay) {
  for (const char* text : {"", ": ", "step", "rank 1: barrier: no answer", "'my.mesh.shard' is bf16",
                           "steps()", "block.3 of pipelines. The end"})
    EXPECT_EQ(in_words_of_c(text), text);
  const std::string once = in_words_of_c("write: strategy.update is next; call finish_updates()");
  EXPECT_EQ(in_words_of_c(once), once);
}

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; }

// Words of a message that name an option, "strategy.update", or a verb, "begin()".
void add_words(const std::string& message, std::set<std::string>& words) {
  constexpr std::string_view kOptions[] = {"strategy.", "mesh.",    "clip.",     "loss_scaling.",
                                           "waits.",    "offload.", "pipeline.", "terms."};
  constexpr std::string_view kVerbs[] = {"begin",          "step",  "abandon", "initialize",
                                         "finish_updates", "write", "leave"};
  for (std::size_t at = 0; at < message.size();) {
    std::size_t end = at;
    while (end < message.size() && in_word(message[end])) ++end;
    std::string word = message.substr(at, end - at);
    while (word.ends_with('.')) word.pop_back();
    const auto begins = [&](std::string_view option) {
      return word.starts_with(option) && word.size() > option.size();
    };
    if (!word.ends_with(".h") && std::ranges::any_of(kOptions, begins)) words.insert(word);
    if (message.compare(end, 2, "()") == 0 && std::ranges::find(kVerbs, word) != std::end(kVerbs))
      words.insert(word + "()");
    at = std::max(end, at + 1);
  }
}

// What string literals of the floors below the C API name in the words of C++. Names of figures are among
// them, which the C API has in part.
std::set<std::string> words_of_messages() {
  std::set<std::string> words;
  for (const char* root : {"engine", "build", "layout", "program"})
    for (const fs::directory_entry& file : fs::directory_iterator(fs::path(TESSERA_SOURCES) / "src" / root)) {
      if (file.path().extension() != ".cpp" || file.path().filename() == "c_words.cpp") continue;
      std::ifstream in(file.path());
      for (std::string line; std::getline(in, line);)
        for (std::size_t at = line.find('"'); at != std::string::npos; at = line.find('"', at + 1)) {
          const std::size_t begin = at + 1;
          at = line.find('"', begin);
          if (at == std::string::npos) break;
          add_words(line.substr(begin, at - begin), words);
        }
    }
  return words;
}

TEST(CWords, NoMessageNamesWhatCHasNot) {
  const std::set<std::string> words = words_of_messages();
  EXPECT_GT(words.size(), 15u);
  for (const std::string& word : words) {
    if (word == "waits.waiting") continue;  // which C cannot set
    EXPECT_NE(in_words_of_c(word), word) << "add it to src/engine/c_words.cpp";
  }
}

}  // namespace
}  // namespace tessera::testing
