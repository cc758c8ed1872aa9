// Finds the matches of a tokenizer's regular expression in a text, by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

// Bytes [begin, end) of a text.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const Span&) const = default;
};

// Memory that matching needs. For one thread at a time.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class RegexMatches;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Regex {
 public:
  // Throws UsageError for a pattern that is not understood.
  explicit Regex(std::string_view pattern);
  // A pattern that matches `text` itself.
  static Regex literal(std::string_view text);

 private:
  friend class RegexMatches;
  struct Impl;
  Regex() = default;
  std::shared_ptr<const Impl> impl_;
};

// The matches in `text`, which must be UTF-8, from left to right. They do not overlap. Like Oniguruma's
// bindings, they leave out an empty match where the last one ended. `regex`, `text` and `scratch` must
// outlive this.
class RegexMatches {
 public:
  RegexMatches(const Regex& regex, std::string_view text, RegexScratch& scratch);
  RegexMatches(const RegexMatches&) = delete;
  RegexMatches& operator=(const RegexMatches&) = delete;
  // False after the last match. Throws EnvironmentError if PCRE2 runs out of memory or steps.
  bool next(Span& match);

 private:
  bool next_literal(Span& match);
  bool search(Span& match);
  std::size_t to_text(std::size_t place);

  const Regex& regex_;
  std::string_view text_;
  RegexScratch& scratch_;
  std::string buffer_;        // classes of the text's characters, if not all are ASCII
  std::string_view subject_;  // what PCRE2 sees
  std::size_t from_ = 0;      // in subject_
  std::size_t last_end_ = static_cast<std::size_t>(-1);
  // A place in the subject and the same in the text.
  std::size_t known_subject_ = 0, known_text_ = 0;
};

}  // namespace tessera::text
