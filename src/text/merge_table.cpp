#include "src/text/merge_table.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace tessera::text {

namespace {

constexpr std::uint32_t kNever = ~std::uint32_t{0};
constexpr std::size_t kShort = 48;  // words up to this length are searched through for each merge
constexpr std::int32_t kGone = -1;  // a token that became part of the one before it

std::uint32_t rank_of(const MergeTable& table, std::int32_t left, std::int32_t right) {
  const Merge* merge = table.find(left, right);
  return merge == nullptr ? kNever : merge->rank;
}

// ranks[i] is the rank of tokens i and i + 1.
void merge_short(const MergeTable& table, std::vector<std::int32_t>& ids, std::vector<std::uint32_t>& ranks) {
  ranks.resize(ids.size() - 1);
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = rank_of(table, ids[i], ids[i + 1]);
  while (!ranks.empty()) {
    const auto lowest = std::min_element(ranks.begin(), ranks.end());
    if (*lowest == kNever) return;
    const auto i = static_cast<std::size_t>(lowest - ranks.begin());
    ids[i] = table.find(ids[i], ids[i + 1])->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(lowest);
    if (i > 0) ranks[i - 1] = rank_of(table, ids[i - 1], ids[i]);
    if (i < ranks.size()) ranks[i] = rank_of(table, ids[i], ids[i + 1]);
  }
}

// A heap of rank and place, with the lowest on top. An entry is out of date if its tokens have changed since.
class LongMerger {
 public:
  LongMerger(const MergeTable& table, std::vector<std::int32_t>& ids, MergeScratch& scratch)
      : table_(table), ids_(ids), links_(scratch.links), heap_(scratch.heap) {
    links_.resize(ids.size());
    heap_.clear();
    const auto count = static_cast<std::int32_t>(ids.size());
    for (std::int32_t i = 0; i < count; ++i)
      links_[static_cast<std::size_t>(i)] = {.previous = i - 1, .next = i + 1 < count ? i + 1 : -1};
    for (std::int32_t i = 0; i + 1 < count; ++i) append(i);
    std::ranges::make_heap(heap_, std::greater<>());
  }

  void run() {
    while (!heap_.empty()) {
      std::ranges::pop_heap(heap_, std::greater<>());
      const std::uint64_t entry = heap_.back();
      heap_.pop_back();
      const auto place = static_cast<std::int32_t>(entry & 0xffffffffU);
      const Merge* merge = merge_at(place);
      if (merge != nullptr && merge->rank == entry >> 32U) apply(place, merge->id);
    }
    std::erase(ids_, kGone);
  }

 private:
  std::int32_t& id(std::int32_t place) { return ids_[static_cast<std::size_t>(place)]; }
  MergeScratch::Link& link(std::int32_t place) { return links_[static_cast<std::size_t>(place)]; }

  const Merge* merge_at(std::int32_t place) {
    const std::int32_t next = link(place).next;
    return id(place) == kGone || next < 0 ? nullptr : table_.find(id(place), id(next));
  }

  bool append(std::int32_t place) {
    const Merge* merge = merge_at(place);
    if (merge == nullptr) return false;
    heap_.push_back(std::uint64_t{merge->rank} << 32U | static_cast<std::uint32_t>(place));
    return true;
  }

  void push(std::int32_t place) {
    if (append(place)) std::ranges::push_heap(heap_, std::greater<>());
  }

  void apply(std::int32_t place, std::int32_t merged) {
    const std::int32_t gone = link(place).next;
    const std::int32_t next = link(gone).next;
    id(place) = merged;
    id(gone) = kGone;
    link(place).next = next;
    if (next >= 0) link(next).previous = place;
    if (link(place).previous >= 0) push(link(place).previous);
    push(place);
  }

  const MergeTable& table_;
  std::vector<std::int32_t>& ids_;
  std::vector<MergeScratch::Link>& links_;
  std::vector<std::uint64_t>& heap_;
};

}  // namespace

MergeTable::MergeTable(std::size_t merges)
    : slots_(std::bit_ceil(std::max<std::size_t>(2 * merges, 2))), mask_(slots_.size() - 1) {}

void MergeTable::set(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t i = place_of(pair);
  while (slots_[i].pair != pair && slots_[i].pair != kEmpty) i = (i + 1) & mask_;
  slots_[i] = {.pair = pair, .merge = merge};
}

void merge_all(const MergeTable& table, std::vector<std::int32_t>& ids, MergeScratch& scratch) {
  if (ids.size() < 2) return;
  if (ids.size() <= kShort)
    merge_short(table, ids, scratch.ranks);
  else
    LongMerger(table, ids, scratch).run();
}

}  // namespace tessera::text
