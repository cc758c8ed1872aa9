// The memory that the emulated GPUs gave: which ranges there are, and whose they are.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::emulated_cuda {

constexpr std::size_t kPage = 4096;

struct Range {
  std::size_t bytes;
  int ordinal;  // of the GPU; -1: the host's, pinned
};
struct Memory {
  std::mutex in_use;  // by whoever has access
  std::mutex mutex;   // guards the next
  std::map<const std::byte*, Range> ranges;

  void protect(int gpu, int how);  // as mprotect() has it
  // What protect() was last called for: whoever has access may touch no other memory, which may be newer.
  std::vector<std::pair<std::byte*, std::size_t>> reached;
  void add(void* begin, std::size_t bytes, int ordinal) {
    const std::lock_guard lock(mutex);
    ranges[static_cast<std::byte*>(begin)] = {bytes, ordinal};
  }
  // Whether all these bytes are one allocation's, of this GPU or pinned.
  bool reaches(int gpu, const void* begin, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    const auto* const byte = static_cast<const std::byte*>(begin);
    const auto behind = ranges.upper_bound(byte);
    if (behind == ranges.begin()) return false;
    const auto& [start, range] = *std::prev(behind);
    return byte + bytes <= start + range.bytes && (range.ordinal == gpu || range.ordinal == -1);
  }
  std::optional<Range> find(void* begin) {
    const std::lock_guard lock(mutex);
    const auto found = ranges.find(static_cast<std::byte*>(begin));
    return found == ranges.end() ? std::nullopt : std::optional(found->second);
  }
  std::size_t bytes_of(int ordinal) {
    const std::lock_guard lock(mutex);
    std::size_t sum = 0;
    for (const auto& [begin, range] : ranges)
      if (range.ordinal == ordinal) sum += range.bytes;
    return sum;
  }
  std::size_t bytes() {
    const std::lock_guard lock(mutex);
    std::size_t sum = 0;
    for (const auto& [begin, range] : ranges) sum += range.bytes;
    return sum;
  }
  void remove(void* begin) {
    const std::lock_guard lock(mutex);
    ranges.erase(static_cast<std::byte*>(begin));
  }
  // Neither a GPU's nor pinned.
  bool is_pageable(const void* at) {
    const std::lock_guard lock(mutex);
    const auto* const byte = static_cast<const std::byte*>(at);
    const auto behind = ranges.upper_bound(byte);
    return behind == ranges.begin() || byte >= std::prev(behind)->first + std::prev(behind)->second.bytes;
  }
};

Memory& memory();

}  // namespace tessera::emulated_cuda
