#include "src/engine/guards.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "tessera/error.h"
#include "tessera/memory_plan.h"

namespace tessera {
namespace {

// Another for buffers of other names: bytes that a kernel copies from one guard to another are then seen. Not
// 0, nor 0xFF, which dead memory is filled with.
std::byte pattern_of(const Buffer& buffer) {
  return static_cast<std::byte>(1 + XXH3_64bits(buffer.name.data(), buffer.name.size()) % 253);
}

// Where its guard begins: on the host it has whole blocks, as copies from and to the disk move no less.
std::int64_t end_of(const Buffer& buffer) {
  return buffer.space == Space::host ? round_up(buffer.bytes, kBlockBytes) : buffer.bytes;
}

}  // namespace

bool Guards::reaches(const Stream& stream, const Buffer& buffer) const {
  if (buffer.space == Space::disk || buffer.bytes == 0) return false;
  return stream.native() != nullptr || device_.type() == DeviceType::cpu || buffer.space == Space::host;
}

void Guards::fill(Stream& stream, std::byte* address, const Buffer& buffer) const {
  if (!reaches(stream, buffer)) return;
  const auto pattern = static_cast<int>(pattern_of(buffer));
  for (std::byte* const guard : {address - bytes_, address + end_of(buffer)}) {
    if (stream.native() != nullptr)
      device_.fill(stream, guard, pattern, bytes_);
    else
      std::memset(guard, pattern, static_cast<std::size_t>(bytes_));
  }
}

void Guards::check(Stream& stream, const std::byte* address, const Buffer& buffer, const Program& program,
                   InstructionId over) const {
  if (!reaches(stream, buffer)) return;
  const auto size = static_cast<std::size_t>(bytes_);
  std::span<const std::byte> before(address - bytes_, size), behind(address + end_of(buffer), size);
  std::vector<std::byte> copies;
  if (stream.native() != nullptr) {
    stream.synchronize();  // first: in a copy to such memory the driver would wait without a deadline
    copies.resize(2 * size);
    for (std::span<const std::byte>* guard : {&before, &behind}) {
      std::byte* to = copies.data() + (guard == &behind ? size : 0);
      device_.copy(stream, to, guard->data(), bytes_);
      *guard = {to, size};
    }
    stream.synchronize();
  }
  const std::byte pattern = pattern_of(buffer);
  const auto other = [&](std::byte byte) { return byte != pattern; };
  const auto refuse = [&](std::int64_t distance, const char* side, std::byte found) {
    throw Error(
        fmt::format("guards: byte {} {} buffer '{}' ({} bytes of {} memory) was written: it is {:#04x}, and "
                    "its guard {:#04x}; found behind {}",
                    distance, side, buffer.name, buffer.bytes, name_of(buffer.space), static_cast<int>(found),
                    static_cast<int>(pattern), describe(program, over)));
  };
  if (const auto at = std::ranges::find_if(behind, other); at != behind.end())
    refuse(end_of(buffer) - buffer.bytes + (at - behind.begin()) + 1, "behind the end of", *at);
  if (const auto at = std::find_if(before.rbegin(), before.rend(), other); at != before.rend())
    refuse(at - before.rbegin() + 1, "before", *at);
}

}  // namespace tessera
