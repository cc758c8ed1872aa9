#include "src/comm/staged/descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/error.h"

namespace tessera::comm {

SharedDescriptor SharedDescriptor::of(int descriptor) {
  struct stat status {};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) return {};
  return {.process = static_cast<int>(getpid()),
          .descriptor = descriptor,
          .device = status.st_dev,
          .inode = status.st_ino};
}

int SharedDescriptor::open(int flags, const std::string& what) const {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  const int file = ::open(path.c_str(), flags | O_CLOEXEC);
  if (file < 0)
    throw EnvironmentError(fmt::format("{} cannot be opened ({}): {}", what, path, std::strerror(errno)));
  struct stat status {};
  if (fstat(file, &status) == 0 && status.st_dev == device && status.st_ino == inode) return file;
  ::close(file);
  throw EnvironmentError(fmt::format("{} is not {}: processes do not see each other", path, what));
}

}  // namespace tessera::comm
