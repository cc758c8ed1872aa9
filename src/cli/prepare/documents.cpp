#include "src/cli/prepare/documents.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "src/cli/output.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

bool has_lines(std::string_view name) {
  for (const std::string_view end : {".gz", ".zst"})
    if (name.ends_with(end)) name.remove_suffix(end.size());
  return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

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

struct Documents::Impl {
  Impl(const std::string& path_in, std::string field_in)
      : path(path_in), field(std::move(field_in)), stream(open_stream(path_in)), lines(has_lines(path_in)) {
    fill();
    for (const Format& other : kOthers)
      if (std::string_view(buffer).starts_with(other.magic))
        throw UsageError(
            fmt::format("data prepare: '{}' is {}; {}", escaped(path), other.name, other.remedy));
  }

  // More bytes behind those that are there; false at the end.
  bool fill() {
    buffer.erase(0, std::exchange(at, 0));
    const std::size_t before = buffer.size();
    buffer.resize(before + kBlockBytes);
    buffer.resize(before + stream->read({buffer.data() + before, kBlockBytes}));
    return buffer.size() > before;
  }

  std::optional<std::string> whole_text() {
    if (std::exchange(done, true)) return std::nullopt;
    while (fill()) {
    }
    return buffer.empty() ? std::nullopt : std::optional(std::move(buffer));
  }

  // The next line, without its end. Valid until the next call.
  std::optional<std::string_view> next_line() {
    std::size_t searched = at;
    for (;;) {
      std::size_t end = buffer.find('\n', searched);
      if (end == std::string::npos) {
        searched = buffer.size() - at;  // fill() moves what is there to the beginning
        if (fill()) continue;
        if (at == buffer.size()) return std::nullopt;
        end = buffer.size();
      }
      ++number;
      const std::size_t begin = std::exchange(at, std::min(end + 1, buffer.size()));
      return std::string_view(buffer).substr(begin, end - begin);
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError(fmt::format("data prepare: line {} of '{}' {}", number, escaped(path), what));
  }

  std::string text_of(std::string_view line) {
    simdjson::dom::element whole, value;
    if (const simdjson::error_code error = parser.parse(line.data(), line.size()).get(whole))
      refuse(fmt::format("is no JSON: {}", simdjson::error_message(error)));
    if (!whole.is_object()) refuse("is no JSON object");
    if (whole.at_key(field).get(value) != simdjson::SUCCESS)
      refuse(fmt::format("has no field '{}'; --field names the one that has the text", escaped(field)));
    std::string_view text;
    if (value.get_string().get(text) != simdjson::SUCCESS)
      refuse(fmt::format("has a field '{}' that is no text", escaped(field)));
    return std::string(text);
  }

  std::string path, field;
  std::unique_ptr<ByteStream> stream;
  bool lines;
  bool done = false;
  std::string buffer;  // what was read and not given yet, from `at` on
  std::size_t at = 0;
  std::int64_t number = 0;  // of the line
  simdjson::dom::parser parser;
};

Documents::Documents(const std::string& path, std::string field)
    : impl_(std::make_unique<Impl>(path, std::move(field))) {}
Documents::~Documents() = default;

std::optional<std::string> Documents::next() {
  if (!impl_->lines) return impl_->whole_text();
  while (const std::optional<std::string_view> line = impl_->next_line()) {
    if (line->find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::string text = impl_->text_of(*line);
    if (!text.empty()) return text;
  }
  return std::nullopt;
}

std::int64_t Documents::consumed() const { return impl_->stream->consumed(); }

}  // namespace tessera::cli
