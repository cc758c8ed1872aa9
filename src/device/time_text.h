// A time for people, in the unit that fits it.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>

namespace tessera::device {

// "60.0 s", "1 ms"
inline std::string time_text(std::chrono::nanoseconds time) {
  const std::chrono::duration<double> seconds = time;
  return seconds.count() < 1 ? fmt::format("{:.0f} ms", 1e3 * seconds.count())
                             : fmt::format("{:.1f} s", seconds.count());
}

}  // namespace tessera::device
