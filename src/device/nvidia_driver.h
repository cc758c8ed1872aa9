// The NVIDIA driver that is installed, and the one that programs built with a CUDA version need. Calls
// nothing of CUDA's. A CUDA version is 1000 * major + 10 * minor, as CUDA counts it.
#pragma once

#include <string>
#include <string_view>

namespace tessera::device {

// "12.4" of 12040.
std::string cuda_version_text(int version);

// The driver's own version, such as "535.104.05", of the text that the driver shows in
// /proc/driver/nvidia/version. Empty where the text names none.
std::string driver_release_of(std::string_view text);
std::string read_driver_release();  // empty where no driver is installed

// Why a program that was built with `cuda` cannot use the GPUs of a driver that serves CUDA up to `served`
// (0: no driver is installed): what the driver is, and which one is needed.
std::string too_old_driver(int cuda, int served, std::string_view release);

}  // namespace tessera::device
