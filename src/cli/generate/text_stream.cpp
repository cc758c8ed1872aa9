#include "src/cli/generate/text_stream.h"

#include <algorithm>

namespace tessera::cli {

namespace {

// Tokens that decide how the next one is decoded.
constexpr std::size_t kBefore = 8;

// Bytes at the end that may be the beginning of a character: of text that a tokenizer decoded, U+FFFD stands
// there instead.
std::size_t unfinished(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::size_t bytes = 0;
  while (text.substr(0, text.size() - bytes).ends_with(kReplacement)) bytes += kReplacement.size();
  if (bytes > 0) return bytes;
  for (std::size_t k = 1; k <= std::min<std::size_t>(3, text.size()); ++k) {
    const auto c = static_cast<unsigned char>(text[text.size() - k]);
    if ((c & 0xC0U) == 0x80U) continue;
    const std::size_t needed = c >= 0xF0U ? 4 : c >= 0xE0U ? 3 : c >= 0xC0U ? 2 : 1;
    return k < needed ? k : 0;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(const TextTokens& tokens, std::span<const std::string> stops,
                       std::span<const std::int32_t> prompt)
    : tokens_(tokens), stops_(stops) {
  const auto last = prompt.last(std::min(kBefore, prompt.size()));
  window_.assign(last.begin(), last.end());
  told_ = window_.size();
}

std::string TextStream::add(std::int32_t token) {
  window_.push_back(token);
  return take_certain(false);
}

std::string TextStream::finish() { return take_certain(true); }

std::string TextStream::take_certain(bool last) {
  if (!stopped_.empty()) return "";
  const std::string before = tokens_.decode(std::span(window_).first(told_));
  const std::string all = tokens_.decode(window_);
  if (all.size() > before.size() && (last || unfinished(all) == 0)) {
    held_ += all.substr(before.size());
    told_ = window_.size();
    if (told_ > 2 * kBefore) {
      window_.erase(window_.begin(), window_.end() - static_cast<std::ptrdiff_t>(kBefore));
      told_ = kBefore;
    }
  }
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_)
    if (const std::size_t at = held_.find(stop); at < end) end = at, stopped_ = stop;
  if (end != std::string::npos) return held_.substr(0, end);
  std::size_t keep = 0;
  for (const std::string& stop : stops_)
    for (std::size_t bytes = std::min(stop.size() - 1, held_.size()); !last && bytes > keep; --bytes)
      if (held_.ends_with(std::string_view(stop).substr(0, bytes))) keep = bytes;
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  return certain;
}

}  // namespace tessera::cli
