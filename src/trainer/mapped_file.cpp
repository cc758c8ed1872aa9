#include "src/trainer/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
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

// The errno of madvise(), which takes whole pages; 0 where it is well.
int advise(std::span<const std::byte> bytes, int advice) {
  static const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t before = begin % page_bytes;
  if (::madvise(reinterpret_cast<void*>(begin - before), bytes.size() + before, advice) == 0) return 0;
  return errno;
}

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
  ::madvise(address, bytes, MADV_RANDOM);
  std::error_code ignored;
  return {.owner = std::shared_ptr<const void>(
              address, [bytes](const void* p) { ::munmap(const_cast<void*>(p), bytes); }),
          .bytes = {static_cast<const std::byte*>(address), bytes},
          .path = std::filesystem::absolute(path, ignored).string(),
          .device = status.st_dev,
          .inode = status.st_ino};
}

void read_ahead(std::span<const std::byte> bytes) { advise(bytes, MADV_WILLNEED); }

bool can_read(std::span<const std::byte> bytes) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers lack
  int code = EINTR;
  while (code == EINTR || code == EAGAIN) code = advise(bytes, kPopulateRead);
  return code == 0 || code == EINVAL;
}

bool holds(const MappedFile& file, std::span<const std::byte> bytes) {
  struct stat status = {};
  if (::stat(file.path.c_str(), &status) != 0) return true;
  if (status.st_dev != file.device || status.st_ino != file.inode) return true;
  return bytes.data() + bytes.size() - file.bytes.data() <= status.st_size;
}

std::vector<std::string> matching_files(const std::string& path) {
  std::error_code ignored;
  if (path.find_first_of("*?[") == std::string::npos || std::filesystem::exists(path, ignored)) return {path};
  glob_t found = {};
  const int status = ::glob(path.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
  std::vector<std::string> files;
  if (status == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status == GLOB_NOMATCH) throw EnvironmentError(fmt::format("no file matches '{}'", path));
  if (status != 0) throw EnvironmentError(fmt::format("cannot read the folders of '{}'", path));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace tessera
