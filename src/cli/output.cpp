#include "src/cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
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

std::string loss_text(double loss) { return fmt::format("{:.4f}", std::isnan(loss) ? std::abs(loss) : loss); }

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

void check_can_write(const char* key, const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(folder);
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  // A file without a name, where the file system has such: whoever is killed here leaves nothing.
  if (const int file = ::open(there.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600); file >= 0) {
    ::close(file);
    return;
  }
  const std::string probe = there / fmt::format(".tessera-{}", ::getpid());
  const int file = ::open(probe.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0)
    throw EnvironmentError(
        fmt::format("{}: cannot write into '{}': {}", key, folder.string(), std::strerror(errno)));
  ::close(file);
  ::unlink(probe.c_str());
}

namespace {

// Keeps the reason of the first write that failed: a stream tells later, and not why.
class ReasonBuffer final : public std::filebuf {
 public:
  int reason() const { return reason_; }

 protected:
  int_type overflow(int_type c) override {
    errno = 0;
    const int_type result = std::filebuf::overflow(c);
    if (traits_type::eq_int_type(result, traits_type::eof())) keep();
    return result;
  }
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    errno = 0;
    const std::streamsize written = std::filebuf::xsputn(text, count);
    if (written != count) keep();
    return written;
  }

 private:
  void keep() {
    if (reason_ == 0) reason_ = errno;
  }
  int reason_ = 0;
};

}  // namespace

bool is_standard_output(const std::filesystem::path& path) {
  struct stat there {
  }, output{};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(STDOUT_FILENO, &output) == 0 &&
         there.st_dev == output.st_dev && there.st_ino == output.st_ino;
}

bool write_to_standard_output(std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

class OutputFile::Stream : public std::ostream {
 public:
  Stream() : std::ostream(nullptr) { rdbuf(&buffer); }
  // Keeps what is written until it is taken.
  void keep() { rdbuf(&kept); }
  ReasonBuffer buffer;
  std::stringbuf kept;
};

OutputFile::OutputFile() : out_(std::make_unique<Stream>()) {}
OutputFile::~OutputFile() { discard(); }
std::ostream& OutputFile::stream() { return *out_; }

EnvironmentError OutputFile::cannot_write(std::string_view reason) const {
  return EnvironmentError(fmt::format("{}: cannot write '{}': {}", argument_, path_.string(), reason));
}

OutputFile::OutputFile(std::string_view argument, const std::filesystem::path& path)
    : argument_(argument), path_(path), out_(std::make_unique<Stream>()) {
  if (path.empty()) return;
  if (is_standard_output(path)) {
    out_->keep();
    return;
  }
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  target_ = std::filesystem::is_regular_file(there) ? std::filesystem::canonical(path, ignored) : path;
  partial_ = target_;
  // A pipe or a terminal is written as it is: a rename would replace it, as it would a link to nothing.
  if (std::filesystem::is_regular_file(there) ||
      !std::filesystem::exists(std::filesystem::symlink_status(path, ignored)))
    partial_ += ".partial";
  errno = 0;
  if (!std::filesystem::is_directory(there))
    out_->buffer.open(partial_, std::ios::binary | std::ios::out | std::ios::trunc);
  if (!out_->buffer.is_open()) throw cannot_write(std::strerror(errno == 0 ? EISDIR : errno));
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : argument_(std::move(other.argument_)),
      path_(std::exchange(other.path_, {})),
      target_(std::exchange(other.target_, {})),
      partial_(std::exchange(other.partial_, {})),
      out_(std::exchange(other.out_, std::make_unique<Stream>())) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  discard();
  argument_ = std::move(other.argument_);
  path_ = std::exchange(other.path_, {});
  target_ = std::exchange(other.target_, {});
  partial_ = std::exchange(other.partial_, {});
  std::swap(out_, other.out_);
  return *this;
}

void OutputFile::commit() {
  if (path_.empty()) return;
  if (target_.empty()) {
    if (!write_to_standard_output(out_->kept.str())) throw cannot_write(std::strerror(errno));
    return path_.clear();
  }
  const bool written = out_->buffer.close() != nullptr && *out_;
  const int code = out_->buffer.reason();
  std::error_code error;
  if (written && partial_ != target_) std::filesystem::rename(partial_, target_, error);
  if (!written || error) {
    const EnvironmentError refused =
        cannot_write(error ? error.message() : std::strerror(code == 0 ? EIO : code));
    discard();
    throw EnvironmentError(refused);
  }
  path_.clear();
}

void OutputFile::discard() noexcept {
  if (path_.empty()) return;
  out_->buffer.close();
  std::error_code ignored;
  if (partial_ != target_) std::filesystem::remove(partial_, ignored);
  path_.clear();
}

}  // namespace tessera::cli
