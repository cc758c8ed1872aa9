#include "src/device/cuda_queues.h"

#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "src/device/cuda_driver.h"

namespace tessera::device {
namespace {

constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr int kDefault = 8, kMost = 32;

// What was found when the variable was asked for.
struct Found {
  std::string given;           // the environment's value; empty if this process set it
  std::vector<bool> too_late;  // [ordinal] the GPU had a context of this process
};

// The GPUs on which this process has a primary context: the one that the runtime and most libraries use.
std::vector<bool> active_contexts() {
  const auto count_devices =
      reinterpret_cast<decltype(&cuDeviceGetCount)>(find_driver_call("cuDeviceGetCount"));
  const auto get_device = reinterpret_cast<decltype(&cuDeviceGet)>(find_driver_call("cuDeviceGet"));
  const auto get_state =
      reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(find_driver_call("cuDevicePrimaryCtxGetState"));
  if (count_devices == nullptr || get_device == nullptr || get_state == nullptr) return {};
  int count = 0;
  if (count_devices(&count) != CUDA_SUCCESS) return {};  // the driver has not begun: nobody has a context
  std::vector<bool> active;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    unsigned flags = 0;
    int is_active = 0;
    active.push_back(get_device(&device, ordinal) == CUDA_SUCCESS &&
                     get_state(device, &flags, &is_active) == CUDA_SUCCESS && is_active != 0);
  }
  return active;
}

Found ask() {
  if (const char* const value = std::getenv(kVariable); value != nullptr)
    return {.given = value, .too_late = {}};
  setenv(kVariable, std::to_string(kMost).c_str(), 0);
  return {.given = {}, .too_late = active_contexts()};
}

const Found& found() {
  static const Found once = ask();  // not by every thread: another may read the environment meanwhile
  return once;
}

}  // namespace

void ask_for_queues() { found(); }

HardwareQueues hardware_queues(int ordinal) {
  const Found& of = found();
  if (!of.given.empty()) {
    const long value = std::strtol(of.given.c_str(), nullptr, 10);
    const int count = value < 1 ? kDefault : static_cast<int>(std::min<long>(value, kMost));
    return {.count = count,
            .why = count < kMost ? fmt::format("{} is '{}' in the environment", kVariable, of.given) : ""};
  }
  const auto place = static_cast<std::size_t>(ordinal);
  if (place >= of.too_late.size() || !of.too_late[place]) return {.count = kMost, .why = {}};
  return {.count = kDefault,
          .why = fmt::format("{} was not in the environment when this process made its context on the GPU, "
                             "before it made a device of Tessera's",
                             kVariable)};
}

std::string shared_queues(int ordinal, int streams) {
  const HardwareQueues queues = hardware_queues(ordinal);
  if (streams <= queues.count) return {};
  return fmt::format(
      "GPU {}: {} streams share {} hardware queues and wait for each other{}{}; set {}={} before the process "
      "starts",
      ordinal, streams, queues.count, queues.why.empty() ? "" : ": ", queues.why, kVariable, kMost);
}

}  // namespace tessera::device
