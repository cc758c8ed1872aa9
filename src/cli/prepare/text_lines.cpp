#include "src/cli/prepare/text_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/cli/output.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

struct Format {
  std::string_view magic, name, remedy;
};
constexpr Format kOthers[] = {{"PAR1", "Parquet",
                               "convert it first: python3 -c \"import pandas, sys; "
                               "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], "
                               "orient='records', lines=True)\" IN.parquet OUT.jsonl"},
                              {"ARROW1", "Arrow", "convert it to JSON lines first"},
                              {"\x93NUMPY", "NumPy", "it holds numbers, not text"},
                              {"PK\x03\x04", "a zip archive", "unpack it first"},
                              {"%PDF", "PDF", "extract its text first"},
                              {"BZh", "bzip2", "decompress it first, or use gzip or zstd"},
                              {"\xfd"
                               "7zXZ",
                               "xz", "decompress it first, or use gzip or zstd"}};

}  // namespace

TextLines::TextLines(const std::string& path, const char* command)
    : path_(path), command_(command), stream_(open_stream(path)) {
  fill();
  for (const Format& other : kOthers)
    if (std::string_view(buffer_).starts_with(other.magic))
      throw UsageError(fmt::format("{}: '{}' is {}; {}", command_, escaped(path_), other.name, other.remedy));
}

// More bytes behind those that are there; false at the end.
bool TextLines::fill() {
  buffer_.erase(0, std::exchange(at_, 0));
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kBlockBytes);
  buffer_.resize(before + stream_->read({buffer_.data() + before, kBlockBytes}));
  return buffer_.size() > before;
}

std::string TextLines::rest() {
  while (fill()) {
  }
  return std::exchange(buffer_, {});
}

std::optional<std::string_view> TextLines::next_line() {
  std::size_t searched = at_;
  for (;;) {
    std::size_t end = buffer_.find('\n', searched);
    if (end == std::string::npos) {
      searched = buffer_.size() - at_;  // fill() moves what is there to the beginning
      if (fill()) continue;
      if (at_ == buffer_.size()) return std::nullopt;
      end = buffer_.size();
    }
    ++number_;
    const std::size_t begin = std::exchange(at_, std::min(end + 1, buffer_.size()));
    return std::string_view(buffer_).substr(begin, end - begin);
  }
}

std::optional<std::string_view> TextLines::next() {
  for (;;) {
    const std::optional<std::string_view> line = next_line();
    if (!line || line->find_first_not_of(" \t\r") != std::string_view::npos) return line;
  }
}

void TextLines::refuse(std::string_view what) const {
  throw UsageError(fmt::format("{}: line {} of '{}' {}", command_, number_, escaped(path_), what));
}

}  // namespace tessera::cli
