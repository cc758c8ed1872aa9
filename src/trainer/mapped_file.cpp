#include "src/trainer/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "tessera/error.h"

namespace tessera {
namespace {

[[noreturn]] void refuse(const std::string& path, int code) {
  throw EnvironmentError(fmt::format("cannot read '{}': {}", path, std::generic_category().message(code)));
}

class Descriptor {
 public:
  // Non-blocking, so that a named pipe is refused below rather than waited for.
  explicit Descriptor(const std::string& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (value_ < 0) refuse(path, errno);
  }
  ~Descriptor() { ::close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFile map_file(const std::string& path) {
  const Descriptor file(path);
  struct stat status = {};
  if (::fstat(file.value(), &status) != 0) refuse(path, errno);
  if (S_ISDIR(status.st_mode)) refuse(path, EISDIR);
  if (!S_ISREG(status.st_mode))
    throw EnvironmentError(fmt::format("cannot read '{}': it is not a regular file", path));
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0) return {};
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.value(), 0);
  if (address == MAP_FAILED) refuse(path, errno);
  return {.owner = std::shared_ptr<const void>(
              address, [bytes](const void* p) { ::munmap(const_cast<void*>(p), bytes); }),
          .bytes = {static_cast<const std::byte*>(address), bytes}};
}

}  // namespace tessera
