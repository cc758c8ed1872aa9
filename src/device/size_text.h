// A size for people, in the unit that fits it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace tessera::device {

// "1.50 GiB", "952.00 KiB"
inline std::string size_text(std::int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (bytes >= std::int64_t{1} << 30) return fmt::format("{:.2f} GiB", size / (1 << 30));
  if (bytes >= std::int64_t{1} << 20) return fmt::format("{:.2f} MiB", size / (1 << 20));
  return fmt::format("{:.2f} KiB", size / (1 << 10));
}

}  // namespace tessera::device
