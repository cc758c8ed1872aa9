#include "src/launch/find_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "tessera/error.h"

namespace tessera::launching {
namespace {

namespace fs = std::filesystem;

bool is_program(const fs::path& file) {
  std::error_code error;
  if (::access(file.c_str(), X_OK) != 0) return false;
  if (!fs::is_directory(file, error)) return true;
  errno = EISDIR;
  return false;
}

}  // namespace

std::string find_command(const std::string& name) {
  if (name.empty()) throw UsageError("the command's first word is empty; name a program");
  if (name.find('/') != std::string::npos) {
    if (is_program(name)) return name;
    throw UsageError(fmt::format("the command '{}' cannot be executed: {}", name, std::strerror(errno)));
  }
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path file = fs::path(folder.empty() ? "." : folder) / name;
    if (is_program(file)) return file.string();
  }
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  if (!error && own.filename() == name) return own.string();
  throw UsageError(fmt::format("the command '{}' is not in PATH; write its path, such as ./{}", name, name));
}

}  // namespace tessera::launching
