#include "src/plan/sweep.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "src/plan/conflicts.h"

namespace tessera {
namespace {

using Index = std::size_t;
using Offsets = std::vector<std::int64_t>;

// Items with several lives meet at most so often, on average, where they are few at a time.
constexpr Index kMeetings = 256;

// Addresses below `top` that nothing alive has.
class Gaps {
 public:
  // The start of the tightest gap that fits, or the top.
  std::int64_t take(std::int64_t bytes) {
    const auto found = by_bytes_.lower_bound({bytes, 0});
    if (found == by_bytes_.end()) return std::exchange(top_, top_ + bytes);
    const auto [gap, begin] = *found;
    erase(begin, gap);
    if (gap > bytes) insert(begin + bytes, gap - bytes);
    return begin;
  }

  void give_back(std::int64_t begin, std::int64_t bytes) {
    auto above = by_begin_.lower_bound(begin);
    if (above != by_begin_.end() && above->first == begin + bytes) {
      bytes += above->second;
      erase(begin + bytes - above->second, above->second);
      above = by_begin_.lower_bound(begin);
    }
    if (above != by_begin_.begin()) {
      const auto [below, gap] = *std::prev(above);
      if (below + gap == begin) {
        erase(below, gap);
        begin = below;
        bytes += gap;
      }
    }
    if (begin + bytes == top_)
      top_ = begin;
    else
      insert(begin, bytes);
  }

 private:
  void insert(std::int64_t begin, std::int64_t bytes) {
    by_begin_.emplace(begin, bytes);
    by_bytes_.emplace(bytes, begin);
  }
  void erase(std::int64_t begin, std::int64_t bytes) {
    by_begin_.erase(begin);
    by_bytes_.erase({bytes, begin});
  }

  std::map<std::int64_t, std::int64_t> by_begin_;
  std::set<std::pair<std::int64_t, std::int64_t>> by_bytes_;
  std::int64_t top_ = 0;
};

// Addresses, and when something has them.
struct Taken {
  std::int64_t begin, end;
  InstructionId first, last;
};

// One item, from its first life to its last.
struct Span {
  Index item;
  std::int64_t bytes;
  InstructionId first, last;
};

// What lies below `base`: items whose addresses are known, and between them what lives for a short time.
class Base {
 public:
  // `fixed` in order of first position.
  Base(std::int64_t height, std::vector<Taken> fixed) : height_(height), fixed_(std::move(fixed)) {}

  // The start of the tightest gap that is free for as long as the span lives; −1 without one, or where
  // looking would take long. Spans come in order of first position.
  std::int64_t take(const Span& span) {
    std::erase_if(alive_, [&](const Taken& taken) { return taken.last < span.first; });
    for (; next_ < fixed_.size() && fixed_[next_].first <= span.first; ++next_)
      if (fixed_[next_].last >= span.first) alive_.push_back(fixed_[next_]);
    if (span.bytes > height_ || span.last - span.first > kShort || alive_.size() > kFew) return -1;
    std::vector<Taken> meets = alive_;
    for (Index i = next_; i < fixed_.size() && fixed_[i].first <= span.last; ++i) meets.push_back(fixed_[i]);
    meets.push_back({height_, height_, 0, 0});
    std::ranges::sort(meets, {}, &Taken::begin);
    std::int64_t top = 0, best = std::numeric_limits<std::int64_t>::max(), begin = -1;
    for (const Taken& taken : meets) {
      const std::int64_t gap = taken.begin - top;
      if (gap >= span.bytes && gap < best) best = gap, begin = top;
      top = std::max(top, taken.end);
    }
    if (begin >= 0) alive_.push_back({begin, begin + span.bytes, span.first, span.last});
    return begin;
  }

 private:
  static constexpr InstructionId kShort = 64;
  static constexpr Index kFew = 256;

  std::int64_t height_;
  std::vector<Taken> fixed_;
  Index next_ = 0;
  std::vector<Taken> alive_;
};

// Gives memory where spans begin and takes it back where they end; sets the offsets of their items. The
// height.
std::int64_t run(std::vector<Span> spans, std::int64_t base, std::vector<Taken> fixed, Offsets& offsets) {
  std::ranges::sort(spans, {},
                    [](const Span& span) { return std::tuple(span.first, -span.last, span.item); });
  std::ranges::sort(fixed, {}, [](const Taken& taken) { return std::tuple(taken.first, taken.begin); });
  using End = std::pair<InstructionId, Index>;  // of spans[]
  std::priority_queue<End, std::vector<End>, std::greater<>> alive;
  Base below(base, std::move(fixed));
  Gaps gaps;
  std::int64_t height = base;
  for (Index i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    for (; !alive.empty() && alive.top().first < span.first; alive.pop()) {
      const Span& over = spans[alive.top().second];
      gaps.give_back(offsets[over.item] - base, over.bytes);
    }
    std::int64_t& offset = offsets[span.item];
    offset = below.take(span);
    if (offset >= 0) continue;
    offset = base + gaps.take(span.bytes);
    height = std::max(height, offset + span.bytes);
    alive.emplace(span.last, i);
  }
  return height;
}

// By item the others that are alive with it, once for each time that they meet; empty where those are too
// many to be listed.
std::vector<std::vector<Index>> meetings(std::span<const PackItem> items) {
  const std::vector<LifeEvent> events = events_of(items);
  Index alive = 0, pairs = 0;
  for (const LifeEvent& event : events) {
    if (!event.end) pairs += alive;
    event.end ? --alive : ++alive;
  }
  if (pairs > kMeetings * items.size()) return {};
  std::vector<std::vector<Index>> found(items.size());
  std::set<Index> active;
  for (const LifeEvent& event : events) {
    if (event.end) {
      active.erase(event.item);
      continue;
    }
    for (const Index other : active) {
      found[event.item].push_back(other);
      found[other].push_back(event.item);
    }
    active.insert(event.item);
  }
  return found;
}

// The largest first, each in the lowest gap among those it meets. The height.
std::int64_t place(std::span<const PackItem> items, const std::vector<std::vector<Index>>& meets,
                   Offsets& offsets) {
  std::vector<Index> order(items.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](Index item) { return items[item].bytes; });
  offsets.assign(items.size(), -1);
  std::int64_t height = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (const Index item : order) {
    taken.clear();
    for (const Index other : meets[item])
      if (offsets[other] >= 0) taken.emplace_back(offsets[other], offsets[other] + items[other].bytes);
    std::ranges::sort(taken);
    std::int64_t top = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - top >= items[item].bytes) break;
      top = std::max(top, end);
    }
    offsets[item] = top;
    height = std::max(height, top + items[item].bytes);
  }
  return height;
}

}  // namespace

// Items with several lives are few at a time, as gathered parameters are, and lie below the others. Where
// they are not few, each keeps its memory between its lives.
Packing sweep(std::span<const PackItem> items) {
  std::vector<PackItem> several;
  std::vector<Index> origin;
  for (Index item = 0; item < items.size(); ++item) {
    if (items[item].lives.size() == 1) continue;
    several.push_back(items[item]);
    origin.push_back(item);
  }
  const std::vector<std::vector<Index>> meets = meetings(several);
  const bool few = !meets.empty();
  std::vector<Span> spans;
  for (Index item = 0; item < items.size(); ++item) {
    const std::vector<Lifetime>& lives = items[item].lives;
    if (!few || lives.size() == 1)
      spans.push_back({item, items[item].bytes, lives.front().first, lives.back().last});
  }
  Packing packing{.offsets = Offsets(items.size(), 0)};
  packing.live_peak = packing.bound = std::ranges::max(live_curve(items, events_of(items)));
  Offsets offsets;
  const std::int64_t base = few ? place(several, meets, offsets) : 0;
  std::vector<Taken> fixed;
  for (Index i = 0; few && i < several.size(); ++i) {
    packing.offsets[origin[i]] = offsets[i];
    for (const Lifetime& life : several[i].lives)
      fixed.push_back({offsets[i], offsets[i] + several[i].bytes, life.first, life.last});
  }
  packing.height = run(spans, base, fixed, packing.offsets);
  // The same from the end of time.
  for (Span& span : spans) span.first = -std::exchange(span.last, -span.first);
  for (Taken& taken : fixed) taken.first = -std::exchange(taken.last, -taken.first);
  Offsets backwards = packing.offsets;
  const std::int64_t height = run(std::move(spans), base, std::move(fixed), backwards);
  if (height < packing.height) {
    packing.height = height;
    packing.offsets = std::move(backwards);
  }
  return packing;
}

}  // namespace tessera
