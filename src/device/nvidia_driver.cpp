#include "src/device/nvidia_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace tessera::device {
namespace {

// The oldest driver that runs programs built with any CUDA of this major version. NVIDIA, CUDA Compatibility,
// "Minor Version Compatibility", table 1, and the CUDA Toolkit Release Notes' table of minimum versions.
std::string needed_driver(int cuda) {
  const std::string built = fmt::format("this build's CUDA {}", cuda_version_text(cuda));
  switch (cuda / 1000) {
    case 12:
      return built + " needs driver 525 or later";
    case 13:
      return built + " needs driver 580 or later";
    default:
      return built + " needs a later one (NVIDIA's release notes of CUDA say which)";
  }
}

}  // namespace

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The first line is like "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...". The
// version is its first word of digits and dots.
std::string driver_release_of(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (word.find('.') != std::string_view::npos &&
        word.find_first_not_of("0123456789.") == std::string_view::npos)
      return std::string(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

std::string read_driver_release() {
  std::ifstream file("/proc/driver/nvidia/version");
  return driver_release_of(std::string(std::istreambuf_iterator<char>(file), {}));
}

std::string too_old_driver(int cuda, int served, std::string_view release) {
  if (served == 0) return "no NVIDIA driver is installed; " + needed_driver(cuda);
  const std::string driver = release.empty() ? "the NVIDIA driver" : fmt::format("NVIDIA driver {}", release);
  return fmt::format("{} is too old: it serves CUDA up to {}, and {}", driver, cuda_version_text(served),
                     needed_driver(cuda));
}

}  // namespace tessera::device
