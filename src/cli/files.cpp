#include "src/cli/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "tessera/error.h"

namespace tessera::cli {

std::string why_no_output(const std::string& path) {
  if (path.empty()) return "it is empty; name what to write to";
  if (path != "-") return "";
  return "it is \"-\"; name /dev/stdout for the standard output, or ./- for a file of that name";
}

std::optional<std::string> read_text(const std::filesystem::path& file) {
  std::error_code error;
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  if (in && !is_directory(file, error) && (text << in.rdbuf() || (in.peek() == EOF && errno == 0)))
    return text.str();
  if (errno == 0) errno = EISDIR;
  return std::nullopt;
}

FileLock::FileLock(const char* key, const std::string& path)
    : file_(::open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
  if (file_ < 0)
    throw EnvironmentError(fmt::format("{}: cannot write '{}': {}", key, path, std::strerror(errno)));
  int code = EINTR;
  while (code == EINTR) code = ::flock(file_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  if (code != EWOULDBLOCK) return;
  ::close(std::exchange(file_, -1));
  throw EnvironmentError(
      fmt::format("{}: another run is writing '{}'; end it, or name another file", key, path));
}

FileLock::~FileLock() {
  if (file_ >= 0) ::close(file_);
}

FileLock::FileLock(FileLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

}  // namespace tessera::cli
