// What NCCL must be and do for several communicators of a rank to work at the same time.
#include <fmt/format.h>

#include <cstdlib>

#include "src/comm/nccl/library.h"
#include "tessera/error.h"

namespace tessera::comm {
namespace {

constexpr int kLeastVersion = 22602;  // earlier ones do not know the variable, and may wait for each other
constexpr const char* kLaunchOrder = "NCCL_LAUNCH_ORDER_IMPLICIT";

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check_nccl_version(int version, const std::string& file) {
  if (version >= kLeastVersion) return;
  throw EnvironmentError(fmt::format(
      "{} is version {}; collectives between GPUs need {} or later: install it or name its folder in "
      "LD_LIBRARY_PATH",
      file, nccl_version_text(version), nccl_version_text(kLeastVersion)));
}

// Only this has NCCL start the kernels of a rank's communicators in one order on all GPUs: that of the host.
// Read when NCCL is first used.
void ask_for_launch_order() {
  const char* const value = std::getenv(kLaunchOrder);
  if (value == nullptr) {
    setenv(kLaunchOrder, "1", 0);
    return;
  }
  if (std::strtoll(value, nullptr, 0) == 0)
    throw EnvironmentError(
        fmt::format("{} is '{}' in the environment: GPUs could wait for each other for good; unset it, or "
                    "set it to 1",
                    kLaunchOrder, value));
}

}  // namespace tessera::comm
