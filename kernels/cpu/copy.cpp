#include "kernels/copy.h"

#include <cstddef>
#include <cstring>

#include "kernels/cpu/fetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/copy.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// `to` begins, and `bytes` is a number, of whole cache lines.
void stream_lines(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) {
  const hn::CappedTag<std::uint8_t, 64> d;
  constexpr auto kWidth = static_cast<std::int64_t>(hn::MaxLanes(d));
  for (std::int64_t line = 0; line < bytes; line += 64) {
    fetch_lines(from, line + kAheadBytes);
    for (std::int64_t i = line; i < line + 64; i += kWidth) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  }
  hwy::FlushStream();
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(stream_lines);

namespace {

// From here on the target is taken to leave the caches before it is used.
constexpr std::int64_t kStreamedBytes = 4 << 20;

}  // namespace

void copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes <= 0) return;
  auto* target = static_cast<std::uint8_t*>(to);
  const auto* source = static_cast<const std::uint8_t*>(from);
  if (bytes >= kStreamedBytes) {
    const auto head = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(target) % 64);
    const std::int64_t lines = (bytes - head) / 64 * 64;
    std::memcpy(target, source, static_cast<std::size_t>(head));
    HWY_DYNAMIC_DISPATCH(stream_lines)(target + head, source + head, lines);
    target += head + lines;
    source += head + lines;
    bytes -= head + lines;
  }
  std::memcpy(target, source, static_cast<std::size_t>(bytes));
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
