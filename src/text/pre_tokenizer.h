// Cuts a text into words, which the model splits into tokens one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/text/regex.h"

namespace tessera::text {

// What becomes of the matches of a pattern, by the names of tokenizer.json. "the-final--countdown", split at
// "-":
//   removed               the final countdown
//   isolated              the - final - - countdown
//   merged_with_previous  the- final- - countdown
//   merged_with_next      the -final - -countdown
//   contiguous            the - final -- countdown
enum class SplitBehavior : std::uint8_t {
  removed,
  isolated,
  merged_with_previous,
  merged_with_next,
  contiguous
};

class PreTokenizer {
 public:
  using Use = std::function<void(std::string_view word)>;

  // From the "pre_tokenizer" of a tokenizer.json; null for none. Throws UsageError naming a type that is not
  // supported.
  static PreTokenizer read(const nlohmann::json* object);

  // That of GPT-2, which puts no space before a text.
  static PreTokenizer gpt2();

  // Whether words are read as bytes.
  bool is_byte_level() const { return byte_level_; }
  // Calls use(word) for each word that is not empty, in order. A word is valid during its call. `is_first`
  // says that `text` is the beginning of the whole input.
  void split(std::string_view text, bool is_first, RegexScratch& scratch, const Use& use) const;

 private:
  enum class Prepend : std::uint8_t { always, first, never };
  struct Split {
    Regex regex;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
  };
  struct Metaspace {
    std::string space;  // replaces " "
    Prepend prepend = Prepend::always;
    bool split = true;
  };
  struct LeadingSpace {};
  using Step = std::variant<Split, Metaspace, LeadingSpace>;
  struct Call {
    RegexScratch& scratch;
    const Use& use;
  };

  void add(const nlohmann::json& part, const std::string& type);
  void add_byte_level(const nlohmann::json& part);
  static Metaspace read_metaspace(const nlohmann::json& part);

  void run(std::size_t step, std::string_view text, bool is_first, const Call& call) const;
  void apply(const Split& split, std::size_t next, std::string_view text, bool is_first,
             const Call& call) const;
  void apply(const Metaspace& metaspace, std::size_t next, std::string_view text, bool is_first,
             const Call& call) const;
  void apply(const LeadingSpace&, std::size_t next, std::string_view text, bool is_first,
             const Call& call) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace tessera::text
