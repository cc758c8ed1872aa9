// The memories that buffers lie in.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// Where a buffer lives: memory of the device, memory of the host, or a file on a local disk. On the CPU
// backend the device is a part of the host's memory that a budget limits.
enum class Space : std::uint8_t { device, host, disk };
inline constexpr int kSpaces = 3;
std::string_view name_of(Space space);

}  // namespace tessera
