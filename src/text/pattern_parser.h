// Reads a tokenizer's regular expression. Knows nothing of PCRE2 beyond the words that it copies.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/text/unicode.h"

namespace tessera::text {

// One part of a pattern: text that PCRE2 reads as it is, or a character of a set.
struct PatternPart {
  std::string text = {};
  int set = -1;  // index in PatternParser::sets; -1 for text
};

class PatternParser {
 public:
  // Throws UsageError naming a part that it does not know.
  explicit PatternParser(std::string_view pattern);

  const std::vector<PatternPart>& parts() const { return parts_; }
  const std::vector<CodePointSet>& sets() const { return sets_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  // What (?i) and (?m) switch, until the group ends.
  struct Flags {
    bool ignore_case = false;
    bool dot_matches_newline = false;
  };
  struct Group {
    std::size_t begin = 0;  // index of its first part; kNone for a group that flags alone opened
    Flags outside = {};
  };

  void read_all();
  void read_part();
  void read_group();
  void read_flags();
  void close_group();
  void close_flags();
  void read_escape();
  bool read_quantifier();
  bool read_interval(std::string& interval);
  bool read_anchor(char letter);
  CodePointSet read_list();
  CodePointSet read_list_item();
  CodePointSet read_posix_class();
  CodePointSet read_property(bool negated);
  // The set of an escape for many characters, such as \s. False for other escapes.
  bool read_class_escape(char letter, CodePointSet& set);
  char32_t read_character_escape(char letter);
  char32_t read_hex(std::size_t least, std::size_t most);

  void add_text(std::string text) { parts_.push_back({.text = std::move(text)}); }
  void add_set(const CodePointSet& set);
  void add_character(char32_t code_point);
  bool at(std::string_view text) const { return rest_.starts_with(text); }
  bool take(std::string_view text);
  char32_t take_code_point();
  [[noreturn]] void refuse(std::string_view what) const;

  std::string_view pattern_;
  std::string_view rest_;
  std::vector<PatternPart> parts_;
  std::vector<CodePointSet> sets_;
  std::vector<Group> groups_;
  Flags flags_;
  int lists_ = 0;             // that are open
  std::size_t atom_ = kNone;  // index of the part where the last atom begins, which a quantifier may follow
};

}  // namespace tessera::text
