#include "src/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>

#include "src/text/pattern.h"
#include "src/text/utf8_text.h"
#include "tessera/error.h"

namespace tessera::text {

namespace {

constexpr std::size_t kFirstStackBytes = 32 << 10, kMostStackBytes = 16 << 20;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text = {};
  pcre2_get_error_message(code, text.data(), text.size());
  return {text.begin(), std::ranges::find(text, 0)};
}

template <typename T>
T* require_memory(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

std::unique_ptr<pcre2_code, FreeCode> compile(const std::string& bytes, std::string_view pattern) {
  int error = 0;
  std::size_t place = 0;
  // Without a context of its own PCRE2 may use CR or any newline, as it was built.
  pcre2_compile_context* context = require_memory(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  std::unique_ptr<pcre2_code, FreeCode> code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(bytes.data()),
                                                           bytes.size(), PCRE2_NO_AUTO_CAPTURE, &error,
                                                           &place, context));
  pcre2_compile_context_free(context);
  if (!code)
    throw UsageError(
        fmt::format("the pattern '{}' is not a regular expression: {}", pattern, message_of(error)));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // where there is none, pcre2_match interprets
  return code;
}

}  // namespace

struct RegexScratch::Impl {
  pcre2_match_data* data = require_memory(pcre2_match_data_create(1, nullptr));
  pcre2_match_context* context = require_memory(pcre2_match_context_create(nullptr));
  pcre2_jit_stack* stack = require_memory(pcre2_jit_stack_create(kFirstStackBytes, kMostStackBytes, nullptr));

  Impl() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~Impl() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Impl {
  std::string pattern;
  std::string text = {};  // of a literal
  std::optional<CharacterClasses> classes = {};
  std::unique_ptr<pcre2_code, FreeCode> code = {};
};

Regex::Regex(std::string_view pattern) {
  Impl impl{.pattern = std::string(pattern)};
  BytePattern translated = translate_pattern(pattern);
  impl.classes = std::move(translated.classes);
  impl.code = compile(translated.pattern, pattern);
  impl_ = std::make_shared<const Impl>(std::move(impl));
}

Regex Regex::literal(std::string_view text) {
  Regex regex;
  regex.impl_ = std::make_shared<const Impl>(Impl{.pattern = std::string(text), .text = std::string(text)});
  return regex;
}

RegexMatches::RegexMatches(const Regex& regex, std::string_view text, RegexScratch& scratch)
    : regex_(regex), text_(text), scratch_(scratch), subject_(text) {
  if (!regex_.impl_->code) return;
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  const auto first = std::ranges::find_if_not(text, is_ascii);
  if (first == text.end()) return;
  buffer_.assign(text.begin(), first);
  buffer_.reserve(text.size());
  for (std::string_view rest(first, text.end()); !rest.empty();) {
    const char32_t code_point = first_code_point(rest);
    buffer_.push_back(static_cast<char>(regex.impl_->classes->of(code_point)));
    rest.remove_prefix(character_bytes(rest[0]));
  }
  subject_ = buffer_;
}

bool RegexMatches::next(Span& match) {
  if (!regex_.impl_->code) return next_literal(match);
  while (from_ <= subject_.size()) {
    if (!search(match)) return false;
    if (match.begin == match.end && match.end == last_end_) {
      ++from_;
      continue;
    }
    from_ = last_end_ = match.end;
    match.begin = to_text(match.begin);
    match.end = to_text(match.end);
    return true;
  }
  return false;
}

bool RegexMatches::search(Span& match) {
  const int found = pcre2_match(regex_.impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(subject_.data()),
                                subject_.size(), from_, 0, scratch_.impl_->data, scratch_.impl_->context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    throw EnvironmentError(
        fmt::format("the pattern '{}' cannot be matched: {}", regex_.impl_->pattern, message_of(found)));
  const std::size_t* ends = pcre2_get_ovector_pointer(scratch_.impl_->data);
  match = {ends[0], ends[1]};
  return true;
}

std::size_t RegexMatches::to_text(std::size_t place) {
  if (buffer_.empty()) return place;
  for (; known_subject_ < place; ++known_subject_) known_text_ += character_bytes(text_[known_text_]);
  return known_text_;
}

bool RegexMatches::next_literal(Span& match) {
  const std::string& wanted = regex_.impl_->text;
  if (wanted.empty()) return false;
  const std::size_t found = text_.find(wanted, from_);
  if (found == text_.npos) return false;
  match = {found, found + wanted.size()};
  from_ = match.end;
  return true;
}

}  // namespace tessera::text
