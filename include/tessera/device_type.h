// The kinds of devices on which memory lies and kernels run.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class DeviceType : std::uint8_t { cpu, cuda };

constexpr std::string_view name_of(DeviceType type) { return type == DeviceType::cpu ? "cpu" : "cuda"; }

}  // namespace tessera
