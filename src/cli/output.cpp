#include "src/cli/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

#include "tessera/error.h"

namespace tessera::cli {

namespace {

// Bytes of the well-formed UTF-8 character at the start of `text`, printable ones only; 0 where there is
// none.
std::size_t printable(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return (first >= 0x20 && first != 0x7f) || first == '\n' || first == '\t' ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  unsigned code = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr unsigned kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool control = code < 0xa0, surrogate = code >= 0xd800 && code < 0xe000;
  if (first < 0xc0 || first > 0xf4 || code < kLeast[length] || code > 0x10ffff || control || surrogate)
    return 0;
  return length;
}

}  // namespace

std::string mib(std::int64_t bytes) {
  return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string count(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string result;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool group = i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0;
    if (group) result += ',';
    result += digits[i];
  }
  return result;
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = printable(text);
    if (length > 0)
      result += text.substr(0, length);
    else
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    text.remove_prefix(std::max<std::size_t>(1, length));
  }
  return result;
}

OutputFile::OutputFile(const std::filesystem::path& path) : path_(path), partial_(path) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  // A pipe, a terminal or /dev/stdout is written as it is: a rename would replace it.
  if (!std::filesystem::exists(there) || std::filesystem::is_regular_file(there)) partial_ += ".partial";
  errno = 0;
  if (!std::filesystem::is_directory(there)) out_.open(partial_, std::ios::binary | std::ios::trunc);
  if (!out_.is_open()) {
    const int code = errno == 0 ? EISDIR : errno;
    path_.clear();  // nothing to discard
    throw EnvironmentError(fmt::format("cannot write '{}': {}", path.string(), std::strerror(code)));
  }
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      partial_(std::exchange(other.partial_, {})),
      out_(std::move(other.out_)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  discard();
  path_ = std::exchange(other.path_, {});
  partial_ = std::exchange(other.partial_, {});
  out_ = std::move(other.out_);
  return *this;
}

void OutputFile::commit() {
  if (path_.empty()) return;
  errno = 0;
  out_.close();
  std::error_code error;
  if (out_ && partial_ != path_) std::filesystem::rename(partial_, path_, error);
  if (!out_ || error) {
    const std::string reason = error ? error.message() : std::strerror(errno == 0 ? EIO : errno);
    const std::string path = path_.string();
    discard();
    throw EnvironmentError(fmt::format("cannot write '{}': {}", path, reason));
  }
  path_.clear();
}

void OutputFile::discard() noexcept {
  if (path_.empty()) return;
  out_.close();
  std::error_code ignored;
  if (partial_ != path_) std::filesystem::remove(partial_, ignored);
  path_.clear();
}

}  // namespace tessera::cli
