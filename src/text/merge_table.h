// The merges of a BPE model: which two neighbouring tokens become one, and in which order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::text {

struct Merge {
  std::uint32_t rank = 0;  // lower is earlier
  std::int32_t id = 0;     // of the token that the two become
};

// A hash table from pairs of token ids to merges.
class MergeTable {
 public:
  MergeTable() : MergeTable(0) {}
  explicit MergeTable(std::size_t merges);  // how many will be set
  void set(std::int32_t left, std::int32_t right, Merge merge);
  // Null if the two do not merge.
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = pair_of(left, right);
    for (std::size_t i = place_of(pair);; i = (i + 1) & mask_) {
      if (slots_[i].pair == pair) return &slots_[i].merge;
      if (slots_[i].pair == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t pair = kEmpty;
    Merge merge;
  };
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U | static_cast<std::uint32_t>(right);
  }
  std::size_t place_of(std::uint64_t pair) const {
    return static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15U) >> 20U) & mask_;
  }

  std::vector<Slot> slots_;  // at most half of them are used
  std::size_t mask_ = 0;
};

// Memory that merge_all() reuses.
struct MergeScratch {
  struct Link {
    std::int32_t previous = -1;
    std::int32_t next = -1;
  };
  std::vector<Link> links;
  std::vector<std::uint64_t> heap;
  std::vector<std::uint32_t> ranks;
};

// Merges neighbours until none merge: each time the two of the lowest rank, the leftmost of equals. Leaves
// the tokens that remain in `ids`.
void merge_all(const MergeTable& table, std::vector<std::int32_t>& ids, MergeScratch& scratch);

}  // namespace tessera::text
