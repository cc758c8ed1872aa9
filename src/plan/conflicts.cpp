#include "src/plan/conflicts.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

namespace tessera {
namespace {

constexpr std::size_t kCliqueStarts = 64;  // sets of items alive together to start from
constexpr int kCliqueRounds = 16;          // improvements of each
// Of so many items, a matrix is small.
constexpr std::size_t kMatrixItems = 8192;

std::uint64_t mask(std::size_t item) { return std::uint64_t{1} << (item % 64); }

// The distinct sets of items that are alive together and part of no larger such set.
std::vector<ItemSet> largest_live_sets(std::size_t items, std::span<const LifeEvent> events) {
  std::set<ItemSet> seen;
  std::vector<ItemSet> sets;
  ItemSet active((items + 63) / 64, 0);
  bool grown = false;
  for (const LifeEvent& event : events) {
    if (event.end && grown && seen.insert(active).second) sets.push_back(active);
    grown = !event.end;
    active[event.item / 64] ^= mask(event.item);
  }
  return sets;
}

// Takes in the item that adds most bytes after all in the set that do not conflict with it have left.
bool improve(ItemSet& set, std::int64_t& bytes, std::span<const PackItem> items, const Conflicts& conflicts) {
  std::int64_t most = 0;
  std::size_t best = 0;
  for (std::size_t item = 0; item < items.size(); ++item) {
    if ((set[item / 64] & mask(item)) != 0) continue;
    const auto row = conflicts.row(item);
    std::int64_t gain = items[item].bytes;
    for (std::size_t word = 0; word < set.size() && gain > most; ++word) {
      const std::uint64_t leaving = set[word] & ~row[word];
      for_each(std::span(&leaving, 1), [&](std::size_t bit) { gain -= items[word * 64 + bit].bytes; });
    }
    if (gain <= most) continue;
    most = gain;
    best = item;
  }
  if (most == 0) return false;
  const auto row = conflicts.row(best);
  for (std::size_t word = 0; word < set.size(); ++word) set[word] &= row[word];
  set[best / 64] |= mask(best);
  bytes += most;
  return true;
}

// Bit b of word a to bit a of word b (Warren, Hacker's Delight, 7-3): swaps halves of ever smaller squares.
void transpose(std::array<std::uint64_t, 64>& square) {
  std::uint64_t low = 0x00000000FFFFFFFF;
  for (std::size_t half = 32; half != 0; half /= 2, low ^= low << half) {
    for (std::size_t a = 0; a < 64; a = ((a | half) + 1) & ~half) {
      const std::uint64_t differ = ((square[a] >> half) ^ square[a | half]) & low;
      square[a] ^= differ << half;
      square[a | half] ^= differ;
    }
  }
}

}  // namespace

std::vector<LifeEvent> events_of(std::span<const PackItem> items) {
  std::vector<LifeEvent> events;
  for (std::size_t item = 0; item < items.size(); ++item) {
    for (const Lifetime& life : items[item].lives) {
      events.push_back({life.first, false, item});
      events.push_back({life.last, true, item});
    }
  }
  std::sort(events.begin(), events.end(), [](const LifeEvent& a, const LifeEvent& b) {
    if (a.position != b.position) return a.position < b.position;
    return a.end != b.end ? b.end : a.item < b.item;
  });
  return events;
}

IdVector<std::int64_t> live_curve(std::span<const PackItem> items, std::span<const LifeEvent> events) {
  if (events.empty()) return {};
  IdVector<std::int64_t> curve(events.back().position + 2, 0);
  for (const LifeEvent& event : events) {
    const std::int64_t bytes = items[event.item].bytes;
    curve[event.position + (event.end ? 1 : 0)] += event.end ? -bytes : bytes;
  }
  std::partial_sum(curve.begin(), curve.end(), curve.begin());
  curve.pop_back();
  return curve;
}

namespace {

// How many are alive at the starts of lives, in all.
std::size_t meetings(std::span<const LifeEvent> events) {
  std::size_t alive = 0, all = 0;
  for (const LifeEvent& event : events) {
    if (!event.end) all += alive;
    event.end ? --alive : ++alive;
  }
  return all;
}

}  // namespace

Conflicts::Conflicts(std::span<const PackItem> items, std::span<const LifeEvent> events) : items_(items) {
  // As many meetings take as much memory as the matrix.
  if (items.size() > kMatrixItems && meetings(events) < items.size() * items.size() / 32)
    fill_starts(events);
  else
    fill_matrix(events);
}

void Conflicts::fill_starts(std::span<const LifeEvent> events) {
  const std::size_t starts = events.size() / 2;
  starts_.reserve(starts);
  first_start_.assign(items_.size(), starts);
  std::vector<std::size_t> last_start(items_.size(), starts), place(items_.size());  // place: in active
  std::vector<std::uint32_t> active;
  for (const LifeEvent& event : events) {
    const std::size_t item = event.item;
    if (event.end) {
      starts_[last_start[item]].until = starts_.size();
      place[active.back()] = place[item];
      active[place[item]] = active.back();
      active.pop_back();
      continue;
    }
    const std::size_t k = starts_.size(), before = last_start[item];
    (before == starts ? first_start_[item] : starts_[before].next) = k;
    last_start[item] = k;
    const std::size_t begin = alive_.size();
    alive_.insert(alive_.end(), active.begin(), active.end());
    starts_.push_back({.item = item, .alive = begin, .alive_end = alive_.size(), .next = starts});
    place[item] = active.size();
    active.push_back(static_cast<std::uint32_t>(item));
  }
}

bool Conflicts::meet(std::size_t a, std::size_t b) const {
  const bool fewer = items_[a].lives.size() < items_[b].lives.size();
  const std::vector<Lifetime>&few = items_[fewer ? a : b].lives, &many = items_[fewer ? b : a].lives;
  return std::ranges::any_of(few, [&](const Lifetime& life) {
    const auto at = std::ranges::lower_bound(many, life.first, {}, &Lifetime::last);
    return at != many.end() && at->first <= life.last;
  });
}

void Conflicts::fill_matrix(std::span<const LifeEvent> events) {
  words_ = (items_.size() + 63) / 64;
  bits_.assign(items_.size() * words_, 0);
  ItemSet active(words_, 0);
  for (const LifeEvent& event : events) {
    if (!event.end) {
      for (std::size_t word = 0; word < words_; ++word) bits_[event.item * words_ + word] |= active[word];
    }
    active[event.item / 64] ^= mask(event.item);
  }
  // So far a row holds what lived when its item's lives began; what began during them is in the others' rows.
  for (std::size_t below = 0; below < words_; ++below) {
    for (std::size_t beside = 0; beside <= below; ++beside) mirror(below, beside);
  }
}

// Makes two squares of 64 × 64 bits, each the other's reflection, alike: what either has, both get.
void Conflicts::mirror(std::size_t below, std::size_t beside) {
  const auto square_at = [&](std::size_t row, std::size_t column) {
    std::array<std::uint64_t, 64> square{};
    for (std::size_t a = 0; a < std::min<std::size_t>(64, items_.size() - 64 * row); ++a)
      square[a] = bits_[(64 * row + a) * words_ + column];
    transpose(square);
    return square;
  };
  const auto take_in = [&](std::size_t row, std::size_t column, const std::array<std::uint64_t, 64>& square) {
    for (std::size_t a = 0; a < std::min<std::size_t>(64, items_.size() - 64 * row); ++a)
      bits_[(64 * row + a) * words_ + column] |= square[a];
  };
  const auto of_below = square_at(below, beside), of_beside = square_at(beside, below);
  take_in(beside, below, of_below);
  take_in(below, beside, of_beside);
}

std::int64_t heaviest_clique(std::span<const PackItem> items, std::span<const LifeEvent> events,
                             const Conflicts& conflicts) {
  const std::vector<ItemSet> sets = largest_live_sets(items.size(), events);
  std::int64_t heaviest = 0;
  const std::size_t stride = sets.size() / kCliqueStarts + 1;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    std::int64_t bytes = 0;
    for_each(sets[i], [&](std::size_t item) { bytes += items[item].bytes; });
    heaviest = std::max(heaviest, bytes);
    if (i % stride != 0) continue;
    ItemSet set = sets[i];
    for (int round = 0; round < kCliqueRounds && improve(set, bytes, items, conflicts); ++round) {
    }
    heaviest = std::max(heaviest, bytes);
  }
  return heaviest;
}

}  // namespace tessera
