#include "src/checkpoint/replace.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "tessera/error.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

// Temporary by their ends, which remove_temporaries() knows.
constexpr std::string_view kAside = ".old.tmp";
constexpr const char* kRemoved = ".removed.tmp";

[[noreturn]] void refuse(const fs::path& from, const fs::path& to, int code) {
  throw EnvironmentError(fmt::format("cannot rename checkpoint folder '{}' to '{}': {}", from.string(),
                                     to.string(), std::strerror(code)));
}

bool lacks_the_call(int code) { return code == EINVAL || code == ENOSYS; }

std::string not_removed(const fs::path& path, const std::string& reason) {
  return fmt::format("cannot remove '{}': {}", path.string(), reason);
}

fs::path replace_in_two_steps(const fs::path& from, const fs::path& to) {
  const fs::path aside = aside_of(to);
  const bool stood = ::rename(to.c_str(), aside.c_str()) == 0;
  if (!stood && errno != ENOENT) refuse(to, aside, errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int code = errno;
    if (stood && ::rename(aside.c_str(), to.c_str()) != 0) refuse(aside, to, errno);
    refuse(from, to, code);
  }
  return stood ? aside : fs::path();
}

}  // namespace

fs::path aside_of(const fs::path& path) {
  fs::path aside = path;
  aside += kAside;
  return aside;
}

Rename system_rename() { return ::renameat2; }

fs::path replace_folder(const fs::path& from, const fs::path& to, Rename rename) {
  if (rename(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return {};
  if (errno == EEXIST && rename(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0)
    return from;
  if (!lacks_the_call(errno)) refuse(from, to, errno);
  return replace_in_two_steps(from, to);
}

std::string remove_folder(const fs::path& path) {
  fs::path removed = path;
  removed += kRemoved;
  if (::rename(path.c_str(), removed.c_str()) != 0) return not_removed(path, std::strerror(errno));
  return remove_temporary(removed);
}

std::string remove_temporary(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? not_removed(path, error.message()) : "";
}

bool restore_aside(const fs::path& path) {
  std::string name = path.string();
  if (!name.ends_with(kAside)) return false;
  name.resize(name.size() - kAside.size());
  return ::rename(path.c_str(), name.c_str()) == 0;  // not over a folder that holds something
}

}  // namespace tessera::checkpoint
