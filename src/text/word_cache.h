// Remembers the tokens of short words. For one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace tessera::text {

// Each word has one slot, which holds the last word that was stored there. A slot is a cache line.
class WordCache {
 public:
  static constexpr std::size_t kMostBytes = 22;
  static constexpr std::size_t kMostIds = 10;

  WordCache() : slots_(kSlots) {}

  struct alignas(64) Slot {
    std::array<char, kMostBytes> word = {};  // zeros follow it
    std::uint8_t bytes = 0;                  // of the word; 0: the slot is empty
    std::uint8_t count = 0;
    std::array<std::int32_t, kMostIds> ids = {};

    std::span<const std::int32_t> tokens() const { return {ids.data(), count}; }
  };

  // The slot of a word; null if the word is empty or too long to be stored.
  Slot* slot_of(std::string_view word) {
    if (word.empty() || word.size() > kMostBytes) return nullptr;
    std::array<std::uint64_t, 3> words = {};
    std::memcpy(words.data(), word.data(), word.size());
    std::uint64_t hash = word.size();
    for (const std::uint64_t part : words) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 32U;
    }
    return &slots_[static_cast<std::size_t>(hash & (kSlots - 1))];
  }

  static bool holds(const Slot& slot, std::string_view word) {
    return slot.bytes == word.size() && std::memcmp(slot.word.data(), word.data(), word.size()) == 0;
  }

  static void store(Slot& slot, std::string_view word, std::span<const std::int32_t> tokens) {
    if (tokens.size() > kMostIds) return;
    std::memcpy(slot.word.data(), word.data(), word.size());
    slot.bytes = static_cast<std::uint8_t>(word.size());
    slot.count = static_cast<std::uint8_t>(tokens.size());
    std::memcpy(slot.ids.data(), tokens.data(), tokens.size_bytes());
  }

 private:
  static constexpr std::size_t kSlots = std::size_t{1} << 15U;
  std::vector<Slot> slots_;
};

}  // namespace tessera::text
