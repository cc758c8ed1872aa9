#include "src/comm/process/range.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/error.h"

namespace tessera::comm {
namespace {

[[noreturn]] void refuse(std::int64_t bytes, const char* call, int code) {
  throw EnvironmentError(
      fmt::format("the {} KiB that the processes of this host share cannot be taken: {}: {}; set "
                  "ProcessOptions::shared_bytes to less, or free memory",
                  bytes >> 10, call, std::strerror(code)));
}

}  // namespace

SharedRange::SharedRange(std::int64_t bytes) : file_(memfd_create("tessera", MFD_CLOEXEC)), bytes_(bytes) {
  if (file_ < 0) refuse(bytes, "memfd_create", errno);
  if (ftruncate(file_, bytes) != 0) {
    const int code = errno;
    close();
    refuse(bytes, "ftruncate", code);
  }
  map();
}

SharedRange::SharedRange(const SharedDescriptor& descriptor, std::int64_t bytes)
    : file_(descriptor.open(O_RDWR, "the memory that the processes of this host share")), bytes_(bytes) {
  map();
  close();
}

void SharedRange::map() {
  base_ = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (base_ != MAP_FAILED) return;
  const int code = errno;
  close();
  refuse(bytes_, "mmap", code);
}

void SharedRange::close() noexcept {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

SharedRange::~SharedRange() {
  close();
  munmap(base_, static_cast<std::size_t>(bytes_));
}

}  // namespace tessera::comm
