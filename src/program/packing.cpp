// The general problem (dynamic storage allocation) is NP-hard; here items also have several lives at one
// address. Greedy placement in several orders, then a search over orders of fixed length.
#include "src/program/packing.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>

namespace tessera {
namespace {

using Index = std::size_t;
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
// The search stops after about this many tests of one item against another, whatever the time they take.
constexpr std::int64_t kSearchTests = 60'000'000;
constexpr std::int64_t kSearchRounds = 4'000;

// The start or end of a life. Starts come before ends of one position: ends are included.
struct Event {
  InstructionId position;
  bool end;
  Index item;
};

std::vector<Event> events_of(std::span<const PackItem> items) {
  std::vector<Event> events;
  for (Index item = 0; item < items.size(); ++item) {
    for (const Lifetime& life : items[item].lives) {
      events.push_back({life.first, false, item});
      events.push_back({life.last, true, item});
    }
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    if (a.position != b.position) return a.position < b.position;
    return a.end != b.end ? b.end : a.item < b.item;
  });
  return events;
}

// Which items may not share addresses: a symmetric matrix of bits.
class Conflicts {
 public:
  Conflicts(Index items, const std::vector<Event>& events)
      : words_((items + 63) / 64), bits_(items * words_, 0) {
    std::vector<std::uint64_t> active(words_, 0);
    for (const Event& event : events) {
      if (event.end) {
        active[event.item / 64] &= ~mask(event.item);
        continue;
      }
      for (Index word = 0; word < words_; ++word) row(event.item)[word] |= active[word];
      active[event.item / 64] |= mask(event.item);
    }
    mirror(items);
  }

  bool test(Index a, Index b) const { return (bits_[a * words_ + b / 64] & mask(b)) != 0; }

  template <typename Visit>
  void for_each(Index a, Visit visit) const {
    for (Index word = 0; word < words_; ++word) {
      for (std::uint64_t rest = bits_[a * words_ + word]; rest != 0; rest &= rest - 1) {
        visit(word * 64 + static_cast<Index>(std::countr_zero(rest)));
      }
    }
  }

 private:
  static std::uint64_t mask(Index item) { return std::uint64_t{1} << (item % 64); }
  std::uint64_t* row(Index item) { return &bits_[item * words_]; }

  void mirror(Index items) {
    for (Index a = 0; a < items; ++a) {
      for_each(a, [&](Index b) { row(b)[a / 64] |= mask(a); });
    }
  }

  Index words_;
  std::vector<std::uint64_t> bits_;
};

// What the orders of placement look at, by item.
struct Traits {
  std::vector<std::int64_t> bytes, first, duration, rivals_bytes, load;
};

// Answers "largest value in [from, to]" in constant time.
class RangeMax {
 public:
  explicit RangeMax(std::vector<std::int64_t> values) {
    levels_.push_back(std::move(values));
    for (Index step = 1; 2 * step <= levels_[0].size(); step *= 2) {
      const auto& below = levels_.back();
      std::vector<std::int64_t> level(below.size() - step);
      for (Index i = 0; i < level.size(); ++i) level[i] = std::max(below[i], below[i + step]);
      levels_.push_back(std::move(level));
    }
  }
  std::int64_t operator()(Index from, Index to) const {
    const Index level = static_cast<Index>(std::bit_width(to - from + 1)) - 1;
    return std::max(levels_[level][from], levels_[level][to + 1 - (Index{1} << level)]);
  }

 private:
  std::vector<std::vector<std::int64_t>> levels_;
};

std::vector<std::int64_t> live_bytes_by_position(std::span<const PackItem> items,
                                                 const std::vector<Event>& events) {
  std::vector<std::int64_t> load(events.empty() ? 0 : static_cast<Index>(events.back().position) + 2, 0);
  for (const Event& event : events) {
    const std::int64_t bytes = items[event.item].bytes;
    load[static_cast<Index>(event.position) + (event.end ? 1 : 0)] += event.end ? -bytes : bytes;
  }
  std::partial_sum(load.begin(), load.end(), load.begin());
  return load;
}

Traits traits_of(std::span<const PackItem> items, const Conflicts& conflicts, const RangeMax& load) {
  Traits traits;
  for (Index item = 0; item < items.size(); ++item) {
    std::int64_t duration = 0, rivals_bytes = 0, most = 0;
    for (const Lifetime& life : items[item].lives) {
      duration += life.last - life.first + 1;
      most = std::max(most, load(static_cast<Index>(life.first), static_cast<Index>(life.last)));
    }
    conflicts.for_each(item, [&](Index rival) { rivals_bytes += items[rival].bytes; });
    traits.bytes.push_back(items[item].bytes);
    traits.first.push_back(items[item].lives.front().first);
    traits.duration.push_back(duration);
    traits.rivals_bytes.push_back(rivals_bytes);
    traits.load.push_back(most);
  }
  return traits;
}

using Order = std::vector<Index>;

// The orders of placement, the one that most often reaches the bound first.
std::vector<Order> orders_of(const Traits& t) {
  using Key = std::function<double(Index)>;
  const auto value = [](std::int64_t x) { return static_cast<double>(x); };
  const Key bytes = [&](Index i) { return value(t.bytes[i]); };
  const Key earlier = [&](Index i) { return -value(t.first[i]); };
  const Key duration = [&](Index i) { return value(t.duration[i]); };
  const Key area = [&](Index i) { return value(t.bytes[i]) * value(t.duration[i]); };
  const Key rivals = [&](Index i) { return value(t.rivals_bytes[i]); };
  const Key load = [&](Index i) { return value(t.load[i]); };
  const std::vector<std::pair<Key, Key>> keys = {{bytes, earlier}, {bytes, duration}, {duration, bytes},
                                                 {load, bytes},    {area, earlier},   {rivals, bytes},
                                                 {load, duration}, {earlier, bytes},  {bytes, rivals}};
  std::vector<Order> orders;
  for (const auto& [primary, secondary] : keys) {
    std::vector<std::pair<double, double>> ranks(t.bytes.size());
    for (Index i = 0; i < ranks.size(); ++i) ranks[i] = {primary(i), secondary(i)};
    Order& order = orders.emplace_back(ranks.size());
    std::iota(order.begin(), order.end(), Index{0});
    std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return ranks[a] > ranks[b]; });
  }
  return orders;
}

enum class Fit { tightest, lowest };

// Places items one by one, in a given order.
class Placer {
 public:
  Placer(std::span<const PackItem> items, const Conflicts& conflicts)
      : items_(items), conflicts_(conflicts), offsets(items.size()) {}

  // False as soon as the height would pass `limit`; `offsets` is then incomplete.
  bool place(const Order& order, Fit fit, std::int64_t limit) {
    placed_.clear();
    height = 0;
    for (const Index item : order) {
      const std::int64_t begin = find(item, fit);
      const std::int64_t end = begin + items_[item].bytes;
      if (end > limit) return false;
      const auto at = std::upper_bound(placed_.begin(), placed_.end(), begin,
                                       [](std::int64_t x, const Range& range) { return x < range.begin; });
      placed_.insert(at, {begin, end, item});
      offsets[item] = begin;
      height = std::max(height, end);
    }
    return true;
  }

 private:
  struct Range {
    std::int64_t begin, end;
    Index item;
  };

  // Among the gaps between the placed items that conflict, the tightest or lowest that fits; above all else.
  std::int64_t find(Index item, Fit fit) const {
    const std::int64_t bytes = items_[item].bytes;
    std::int64_t top = 0, best_gap = kUnlimited, best_begin = -1;
    for (const Range& range : placed_) {
      if (!conflicts_.test(item, range.item)) continue;
      const std::int64_t gap = range.begin - top;
      if (gap >= bytes && gap < best_gap) {
        best_gap = gap;
        best_begin = top;
        if (fit == Fit::lowest || gap == bytes) break;
      }
      top = std::max(top, range.end);
    }
    return best_begin >= 0 ? best_begin : top;
  }

  std::span<const PackItem> items_;
  const Conflicts& conflicts_;
  std::vector<Range> placed_;  // by begin

 public:
  std::vector<std::int64_t> offsets;
  std::int64_t height = 0;
};

// SplitMix64 (Steele, Lea and Flood 2014): a fixed sequence, so that the search is the same every time.
class Sequence {
 public:
  Index below(Index n) {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<Index>((z ^ (z >> 31)) % n);
  }

 private:
  std::uint64_t state_ = 0;
};

struct Candidate {
  Order order;
  Fit fit = Fit::tightest;
  std::vector<std::int64_t> offsets;
  std::int64_t height = kUnlimited;
};

// Moves an item that ends at the top to an earlier place in the order.
void promote_culprit(Candidate& candidate, std::span<const PackItem> items, Sequence& sequence) {
  const auto at_top = [&](Index item) {
    return candidate.offsets[item] + items[item].bytes == candidate.height;
  };
  const auto found = std::find_if(candidate.order.begin(), candidate.order.end(), at_top);
  const auto position = static_cast<Index>(found - candidate.order.begin());
  if (position == 0) return;
  const auto to = candidate.order.begin() + static_cast<std::ptrdiff_t>(sequence.below(position));
  std::rotate(to, found, found + 1);
}

void search(Candidate& best, std::span<const PackItem> items, Placer& placer, std::int64_t bound) {
  const Index count = items.size();
  const auto tests = static_cast<std::int64_t>(count * count / 2 + 1);
  Sequence sequence;
  Candidate current = best;
  for (std::int64_t round = std::min(kSearchRounds, kSearchTests / tests); round > 0; --round) {
    Candidate next = current;
    promote_culprit(next, items, sequence);
    if (sequence.below(2) == 0)
      std::swap(next.order[sequence.below(count)], next.order[sequence.below(count)]);
    if (!placer.place(next.order, next.fit, current.height)) continue;
    next.offsets = placer.offsets;
    next.height = placer.height;
    current = next;
    if (current.height == bound) break;
  }
  best = current;
}

// Packs items that all live and have bytes.
Packing pack_living(std::span<const PackItem> items) {
  const std::vector<Event> events = events_of(items);
  const std::vector<std::int64_t> load = live_bytes_by_position(items, events);
  const Conflicts conflicts(items.size(), events);
  const std::int64_t bound = *std::max_element(load.begin(), load.end());
  Placer placer(items, conflicts);
  Candidate best;
  for (const Order& order : orders_of(traits_of(items, conflicts, RangeMax(load)))) {
    for (const Fit fit : {Fit::tightest, Fit::lowest}) {
      if (best.height == bound) break;
      if (!placer.place(order, fit, best.height == kUnlimited ? kUnlimited : best.height - 1)) continue;
      best = {order, fit, placer.offsets, placer.height};
    }
  }
  if (best.height > bound) search(best, items, placer, bound);
  return {best.offsets, best.height, bound};
}

}  // namespace

Packing pack(std::span<const PackItem> items) {
  std::vector<PackItem> living;
  std::vector<Index> origin;
  for (Index item = 0; item < items.size(); ++item) {
    if (items[item].bytes == 0 || items[item].lives.empty()) continue;
    living.push_back(items[item]);
    origin.push_back(item);
  }
  Packing packing{.offsets = std::vector<std::int64_t>(items.size(), 0)};
  if (living.empty()) return packing;
  const Packing packed = pack_living(living);
  for (Index i = 0; i < living.size(); ++i) packing.offsets[origin[i]] = packed.offsets[i];
  packing.height = packed.height;
  packing.bound = packed.bound;
  return packing;
}

}  // namespace tessera
