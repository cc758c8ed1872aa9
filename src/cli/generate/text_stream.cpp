#include "src/cli/generate/text_stream.h"

#include <algorithm>

namespace tessera::cli {

namespace {

// So many tokens are enough to decide how the next one is decoded.
constexpr std::size_t kBefore = 8;

// Bytes at the end that may be the beginning of a character: of text that a tokenizer decoded, U+FFFD stands
// there instead.
std::size_t unfinished(std::string_view text) {
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
    : tokens_(tokens), stops_(stops), window_(prompt.begin(), prompt.end()), told_(prompt.size()) {
  shorten();
}

// Not within a character: the rest of its bytes would spoil those that follow.
void TextStream::shorten() {
  if (told_ <= 2 * kBefore) return;
  for (std::size_t first = told_ - kBefore; first > 0; --first) {
    const std::string left = tokens_.decode(std::span(window_).subspan(first, told_ - first));
    if (left.starts_with(kReplacement) || (!left.empty() && (left.front() & 0xC0) == 0x80)) continue;
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(first));
    told_ -= first;
    return;
  }
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
  if (told_ < window_.size() && (last || unfinished(all) == 0)) {
    // Bytes that make no character change how a tokenizer decodes those before them, which were shown.
    held_ += all.starts_with(before) ? all.substr(before.size())
                                     : tokens_.decode(std::span(window_).subspan(told_));
    told_ = window_.size();
    shorten();
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
