// Messages to users of C: what they call options and verbs.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

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

// What string literals of the floors below the C API name in the words of C++.
std::set<std::string> words_of_messages() {
  static const std::regex literal(R"re("((?:[^"\\\n]|\\.)*)")re");
  static const std::regex word(
      R"re(\b(strategy|mesh|clip|loss_scaling|waits|offload|pipeline|terms)\.[a-z_]+(?!\w*\.h)|\b(begin|step|abandon|initialize|finish_updates|write|leave)\(\))re");
  std::set<std::string> words;
  for (const char* root : {"engine", "build", "layout", "program"})
    for (const fs::directory_entry& file : fs::directory_iterator(fs::path(TESSERA_SOURCES) / "src" / root)) {
      if (file.path().extension() != ".cpp") continue;
      // Names of figures, for which the C API has the same names or a part of them.
      const std::string name = file.path().filename();
      if (name == "c_words.cpp") continue;
      std::ifstream in(file.path());
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      for (std::sregex_iterator at(text.begin(), text.end(), literal), end; at != end; ++at) {
        const std::string inside = (*at)[1];
        for (std::sregex_iterator of(inside.begin(), inside.end(), word); of != end; ++of)
          words.insert((*of)[0]);
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
