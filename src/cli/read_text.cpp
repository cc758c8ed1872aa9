#include "src/cli/read_text.h"

#include <cerrno>
#include <fstream>
#include <sstream>

namespace tessera::cli {

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

}  // namespace tessera::cli
