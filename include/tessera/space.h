// The memories that buffers lie in.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// Where a buffer lives: the device's memory, the host's, a file on a local disk. The CPU backend's device is
// a part of the host's memory that a budget bounds.
enum class Space : std::uint8_t { device, host, disk };
inline constexpr int kSpaces = 3;
std::string_view name_of(Space space);

}  // namespace tessera
