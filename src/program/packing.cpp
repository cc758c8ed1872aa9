// The problem (dynamic storage allocation) is NP-hard, and here an item has several lives at one address.
// Greedy placement in many orders, named and drawn, then a search among the neighbours of the best order.
#include "src/program/packing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "src/program/conflicts.h"
#include "src/program/sweep.h"

namespace tessera {
namespace {

using Index = std::size_t;
using Order = std::vector<Index>;

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
// Work allowed, in tests of one item against another, so that the result does not depend on the clock. A test
// takes about 1 ns.
constexpr std::int64_t kOrderTests = 20'000'000;
constexpr std::int64_t kDrawnTests = 6'000'000;
constexpr std::int64_t kSearchTests = 20'000'000;
// Of more items not all pairs are looked at: their bits alone are more than a gigabyte.
constexpr Index kPairedItems = 100'000;
constexpr Index kSortTests = 60;  // that putting an item into its place in an order takes as long as
constexpr std::int64_t kSearchRounds = 20'000;
// A search that has found nothing better for so many rounds goes back to the best.
constexpr int kPatience = 200;

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
    Index level = 0;
    while ((Index{2} << level) <= to - from + 1) ++level;
    return std::max(levels_[level][from], levels_[level][to + 1 - (Index{1} << level)]);
  }

 private:
  std::vector<std::vector<std::int64_t>> levels_;
};

// What the orders of placement look at.
struct Traits {
  double bytes = 0;
  double first = 0;     // position, as a fraction of all
  double last = 0;      // likewise
  double lives = 0;     // how many
  double longest = 0;   // positions, of one life
  double duration = 0;  // positions, over all lives
  double rivals = 0;    // bytes of the items that conflict
  double load = 0;      // most bytes alive beside it, as a fraction of the peak
};

// All but the rivals, which take as long as the rest of a packing where items are many.
std::vector<Traits> traits_of(std::span<const PackItem> items, const std::vector<std::int64_t>& curve) {
  const RangeMax load(curve);
  const auto peak = static_cast<double>(*std::max_element(curve.begin(), curve.end()));
  std::vector<Traits> traits(items.size());
  for (Index item = 0; item < items.size(); ++item) {
    Traits& t = traits[item];
    t.bytes = static_cast<double>(items[item].bytes);
    t.first = items[item].lives.front().first / static_cast<double>(curve.size());
    t.last = items[item].lives.back().last / static_cast<double>(curve.size());
    t.lives = static_cast<double>(items[item].lives.size());
    for (const Lifetime& life : items[item].lives) {
      const double positions = life.last - life.first + 1;
      t.longest = std::max(t.longest, positions);
      t.duration += positions;
      const auto most = load(static_cast<Index>(life.first), static_cast<Index>(life.last));
      t.load = std::max(t.load, static_cast<double>(most) / peak);
    }
  }
  return traits;
}

void add_rivals(std::vector<Traits>& traits, std::span<const PackItem> items, const Conflicts& conflicts) {
  for (Index item = 0; item < items.size(); ++item)
    for_each(conflicts.row(item),
             [&](Index rival) { traits[item].rivals += static_cast<double>(items[rival].bytes); });
}

// What an order of placement goes by: the first value, then the second, then the third.
using Keys = std::array<double, 3>;
using KeysOf = std::function<Keys(const Traits&)>;

// Items by descending keys, then in their own order.
Order order_by(const std::vector<Traits>& traits, const KeysOf& keys_of) {
  std::vector<Keys> keys;
  keys.reserve(traits.size());
  for (const Traits& t : traits) keys.push_back(keys_of(t));
  Order order(traits.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return keys[a] > keys[b]; });
  return order;
}

constexpr Index kFirstByRivals = 5;

// The orders of placement, those that most often reach the bound first. Only operations that IEEE 754 rounds
// correctly, so that all machines agree.
std::vector<KeysOf> orders_of_placement() {
  std::vector<KeysOf> orders = {
      [](const Traits& t) {
        return Keys{t.bytes, -t.first};
      },
      [](const Traits& t) {
        return Keys{t.bytes, t.duration};
      },
      [](const Traits& t) {
        return Keys{t.duration, t.bytes};
      },
      [](const Traits& t) {
        return Keys{t.load, t.bytes};
      },
      [](const Traits& t) {
        return Keys{t.bytes * t.duration, -t.first};
      },
      [](const Traits& t) {
        return Keys{t.rivals, t.bytes};
      },
      [](const Traits& t) {
        return Keys{-t.first, t.bytes};
      },
      [](const Traits& t) {
        return Keys{t.bytes, t.rivals};
      },
  };
  // Between those: the largest first, but what lives longer, near the peak, or earlier or later, counts more.
  for (const double slope : {0.0, -0.3, 0.3, -0.9, 0.9}) {
    for (const int powers_of_load : {0, 1, 4, 16, 64}) {
      for (const int roots_of_duration : {3, 2, 0}) {
        orders.emplace_back([=](const Traits& t) {
          double weight = t.duration;
          for (int i = 0; i < roots_of_duration; ++i) weight = std::sqrt(weight);
          for (int i = 0; i < powers_of_load; ++i) weight *= t.load;
          return Keys{t.bytes * weight * (1 + slope * t.first), t.bytes};
        });
      }
    }
  }
  return orders;
}

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

// Long lives one above the other, as they begin or end, and then the short ones between them: in a pipeline
// the activations of each microbatch then lie together, and what is short and large fits where they end. What
// counts as long, and how the short ones follow, is drawn: no one choice is good for all.
KeysOf drawn_order(Sequence& sequence, double longest) {
  const Index kind = sequence.below(3), of_long = sequence.below(3), of_short = sequence.below(6);
  double least = longest;  // that counts as long
  for (Index i = sequence.below(12) + 1; i > 0; --i) least /= 1.4;
  return [=](const Traits& t) {
    const auto load = [&](int doublings) {
      double power = t.load;
      for (int i = 0; i < doublings; ++i) power *= power;
      return power;
    };
    if (kind == 2 && t.lives > 1) return Keys{2, t.bytes, -t.first};
    if ((kind == 1 ? t.duration : t.longest) >= least)
      return Keys{1, of_long == 0 ? -t.first : of_long == 1 ? t.last : t.longest, t.bytes};
    const std::array<double, 6> keys = {
        t.bytes,           t.bytes * std::sqrt(t.duration),
        t.bytes * load(4), t.bytes * std::sqrt(std::sqrt(t.duration)) * load(2),
        t.duration,        -t.first};
    return Keys{0, keys[of_short], -t.first};
  };
}

enum class Fit { tightest, lowest };

struct Placed {
  Order order;
  Fit fit = Fit::tightest;
  std::vector<std::int64_t> offsets;
  std::int64_t height = kUnlimited;
};

// Places items one by one, in a given order.
class Placer {
 public:
  Placer(std::span<const PackItem> items, const Conflicts& conflicts)
      : items_(items), conflicts_(conflicts) {}

  // Sets the offsets and height of `placed` from its order, in which those of the first `kept` items are
  // known. False, with both undefined, as soon as the height would pass `limit`.
  bool place(Placed& placed, std::int64_t limit, Index kept = 0) {
    start(placed, kept);
    for (Index i = kept; i < placed.order.size(); ++i) {
      const Index item = placed.order[i];
      const std::int64_t begin = find(item, placed.fit);
      const Range range = {begin, begin + items_[item].bytes, item};
      if (range.end > limit) return false;
      ranges_.insert(std::ranges::upper_bound(ranges_, begin, {}, &Range::begin), range);
      placed.offsets[item] = begin;
      placed.height = std::max(placed.height, range.end);
    }
    return true;
  }

  // How much work was done so far.
  std::int64_t tests() const { return tests_; }

 private:
  struct Range {
    std::int64_t begin, end;
    Index item;
  };

  void start(Placed& placed, Index kept) {
    placed.offsets.resize(items_.size());
    placed.height = 0;
    ranges_.clear();
    tests_ += static_cast<std::int64_t>(kept * (kept + 1) / 2);  // as if they were found again
    for (const Index item : std::span(placed.order).first(kept)) {
      const std::int64_t begin = placed.offsets[item];
      ranges_.push_back({begin, begin + items_[item].bytes, item});
      placed.height = std::max(placed.height, ranges_.back().end);
    }
    std::ranges::sort(ranges_, {}, &Range::begin);
  }

  // Among the gaps between the placed items that conflict, the tightest or lowest that fits; above them else.
  std::int64_t find(Index item, Fit fit) {
    const std::int64_t bytes = items_[item].bytes;
    std::int64_t top = 0, best_gap = kUnlimited, best_begin = -1;
    tests_ += static_cast<std::int64_t>(ranges_.size()) + 1;
    for (const Range& range : ranges_) {
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
  std::vector<Range> ranges_;  // by begin
  std::int64_t tests_ = 0;
};

class Packer {
 public:
  // Items that all live and have bytes.
  explicit Packer(std::span<const PackItem> items)
      : items_(items),
        events_(events_of(items)),
        curve_(live_curve(items, events_)),
        conflicts_(items.size(), events_),
        placer_(items, conflicts_),
        live_peak_(*std::max_element(curve_.begin(), curve_.end())),
        bound_(live_peak_) {}

  Packing run() {
    std::vector<Traits> traits = traits_of(items_, curve_);
    try_named_orders(traits);
    search(kSearchTests);
    if (items_.size() * items_.size() / 2 > static_cast<Index>(kDrawnTests)) {
      try_sweep();  // not even one order could be drawn
    } else {
      const std::int64_t before = best_.height;
      try_drawn_orders(traits);
      if (best_.height < before) search(kDrawnTests);
    }
    return {.offsets = best_.offsets, .height = best_.height, .live_peak = live_peak_, .bound = bound_};
  }

 private:
  void try_named_orders(std::vector<Traits>& traits) {
    const std::vector<KeysOf> orders = orders_of_placement();
    for (Index i = 0; i < orders.size() && !finished(kOrderTests); ++i) {
      // The first orders reach the peak of live bytes nearly always; only then is a better bound worth its
      // time.
      if (i == 2) bound_ = heaviest_clique(items_, events_, conflicts_);
      if (i == kFirstByRivals) add_rivals(traits, items_, conflicts_);
      const Order order = order_by(traits, orders[i]);
      for (const Fit fit : {Fit::tightest, Fit::lowest}) {
        try_order(order, fit);
        if (finished(kOrderTests)) return;
      }
    }
  }

  void try_drawn_orders(const std::vector<Traits>& traits) {
    const double longest = std::ranges::max(traits, {}, &Traits::longest).longest;
    Sequence draws;
    const auto overhead = static_cast<std::int64_t>(kSortTests * items_.size());
    const std::int64_t end = placer_.tests() + kDrawnTests;
    for (std::int64_t round = 0; !finished(end - overhead * round); ++round) {
      const KeysOf keys_of = drawn_order(draws, longest);
      try_order(order_by(traits, keys_of), draws.below(2) == 0 ? Fit::tightest : Fit::lowest);
    }
  }

  // Leaves no order to search from.
  void try_sweep() {
    if (best_.height == bound_) return;
    Packing swept = sweep(items_);
    if (swept.height >= best_.height) return;
    best_.height = swept.height;
    best_.offsets = std::move(swept.offsets);
  }

  void try_order(Order order, Fit fit) {
    Placed next{.order = std::move(order), .fit = fit, .offsets = {}};
    if (placer_.place(next, best_.height - 1)) best_ = std::move(next);
  }

  bool finished(std::int64_t tests) const { return best_.height == bound_ || placer_.tests() > tests; }

  void search(std::int64_t tests) {
    const std::int64_t end = placer_.tests() + tests;
    const auto overhead = static_cast<std::int64_t>(items_.size());
    Placed current = best_;
    int fruitless = 0;
    for (std::int64_t round = 0; round < kSearchRounds && !finished(end - overhead * round); ++round) {
      Placed next = current;
      change(next);
      const auto unlike = std::ranges::mismatch(current.order, next.order).in1 - current.order.begin();
      if (!placer_.place(next, current.height, static_cast<Index>(unlike))) {
        if (++fruitless % kPatience == 0) current = best_;
        continue;
      }
      current = std::move(next);
      if (current.height >= best_.height) continue;
      best_ = current;
      fruitless = 0;
    }
  }

  // Gives an item that ends at the top a better place in the order than one that was in its way.
  void change(Placed& placed) {
    const auto at_top = [&](Index item) {
      return placed.offsets[item] + items_[item].bytes == placed.height;
    };
    auto& order = placed.order;
    const auto culprit = std::find_if(order.begin(), order.end(), at_top);
    std::vector<std::ptrdiff_t> blockers;
    for (auto at = order.begin(); at != culprit; ++at) {
      if (conflicts_.test(*at, *culprit)) blockers.push_back(at - order.begin());
    }
    if (!blockers.empty()) {
      const auto blocker = order.begin() + blockers[sequence_.below(blockers.size())];
      switch (sequence_.below(3)) {
        case 0:
          std::rotate(blocker, culprit, culprit + 1);
          break;
        case 1:
          std::rotate(blocker, blocker + 1, culprit + 1);
          break;
        default:
          std::iter_swap(blocker, culprit);
      }
    }
    if (sequence_.below(4) != 0) return;
    const Index a = sequence_.below(order.size());
    const Index b = sequence_.below(order.size());
    std::swap(order[a], order[b]);
  }

  std::span<const PackItem> items_;
  std::vector<LifeEvent> events_;
  std::vector<std::int64_t> curve_;
  Conflicts conflicts_;
  Placer placer_;
  std::int64_t live_peak_;
  std::int64_t bound_;
  Placed best_;
  Sequence sequence_;
};

}  // namespace

Packing pack(std::span<const PackItem> items) {
  std::vector<PackItem> living;
  std::vector<Index> origin;
  for (Index item = 0; item < items.size(); ++item) {
    if (items[item].bytes == 0 || items[item].lives.empty()) continue;
    living.push_back(items[item]);
    origin.push_back(item);
  }
  if (living.empty()) return {.offsets = std::vector<std::int64_t>(items.size(), 0)};
  Packing packing = living.size() > kPairedItems ? sweep(living) : Packer(living).run();
  std::vector<std::int64_t> offsets(items.size(), 0);
  for (Index i = 0; i < living.size(); ++i) offsets[origin[i]] = packing.offsets[i];
  packing.offsets = std::move(offsets);
  return packing;
}

}  // namespace tessera
