// The problem (dynamic storage allocation) is NP-hard, and here an item has several lives at one address.
// Greedy placement in many orders, named and drawn, then a search among the neighbours of the best order.
#include "src/plan/packing.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "src/plan/conflicts.h"
#include "src/plan/packing_orders.h"
#include "src/plan/sweep.h"

namespace tessera {
namespace {

using Index = std::size_t;

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
// Work allowed, in tests of one item against another, so that the result does not depend on the clock. A test
// takes about 1 ns.
constexpr std::int64_t kOrderTests = 20'000'000;
constexpr std::int64_t kDrawnTests = 6'000'000;
constexpr std::int64_t kSearchTests = 20'000'000;
// Of more items not all pairs are looked at: their bits alone are more than a gigabyte.
constexpr Index kPairedItems = 100'000;
constexpr Index kSortTests = 60;  // that putting an item into its place in an order takes as long as
constexpr std::int64_t kSearchRounds = 60'000;
// Height above the bound that is not worth a search, as a part of the bound: 4 KiB of a GiB.
constexpr std::int64_t kEnough = 1 << 18;
// A search that has found nothing better for so many rounds goes back to the best.
constexpr int kPatience = 200;

enum class Fit { tightest, lowest };

struct Placed {
  PackingOrder order;
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
      const std::int64_t begin = find(item, placed, i);
      const Range range = {begin, begin + items_[item].bytes, item};
      if (range.end > limit) return false;
      if (!conflicts_.is_matrix())
        seen_[item] = seen_last_;
      else
        ranges_.insert(std::ranges::upper_bound(ranges_, begin, {}, &Range::begin), range);
      placed.offsets[item] = begin;
      placed.height = std::max(placed.height, range.end);
    }
    return true;
  }

  // How much work was done so far, as if all that is placed were looked at each time: what is passed over
  // changes no result.
  std::int64_t tests() const { return tests_; }

 private:
  struct Range {
    std::int64_t begin, end;
    Index item;
  };
  static constexpr std::int64_t kNotPlaced = -1;

  void start(Placed& placed, Index kept) {
    placed.offsets.resize(items_.size());
    placed.height = 0;
    ranges_.clear();
    if (!conflicts_.is_matrix()) seen_.assign(items_.size(), kNotPlaced);
    tests_ += static_cast<std::int64_t>(kept * (kept + 1) / 2);  // as if they were found again
    for (const Index item : std::span(placed.order).first(kept)) {
      const std::int64_t begin = placed.offsets[item];
      placed.height = std::max(placed.height, begin + items_[item].bytes);
      if (!conflicts_.is_matrix())
        seen_[item] = seen_last_;
      else
        ranges_.push_back({begin, begin + items_[item].bytes, item});
    }
    std::ranges::sort(ranges_, {}, &Range::begin);
  }

  // Where among the items that are placed, of which there are `count`.
  std::int64_t find(Index item, const Placed& placed, Index count) {
    tests_ += static_cast<std::int64_t>(count) + 1;
    if (conflicts_.is_matrix())
      return find_gap(item, placed.fit, [row = conflicts_.row(item)](const Range& range) {
        return static_cast<std::int64_t>((row[range.item / 64] >> (range.item % 64)) & 1);
      });
    ranges_.clear();
    ++seen_last_;
    conflicts_.each(item, [&](Index other) {
      if (seen_[other] == kNotPlaced || seen_[other] == seen_last_) return;
      seen_[other] = seen_last_;
      ranges_.push_back({placed.offsets[other], placed.offsets[other] + items_[other].bytes, other});
    });
    std::ranges::sort(ranges_, {}, &Range::begin);
    return find_gap(item, placed.fit, [](const Range&) { return std::int64_t{1}; });
  }

  // Finds, among the gaps between the ranges that conflict, the tightest or lowest that fits; above them
  // else. conflicting() is 1 for those ranges and 0 for others. No processor foretells it, so no branch
  // depends on it: a range that does not conflict leaves a gap of 0 bytes.
  template <typename Conflicting>
  std::int64_t find_gap(Index item, Fit fit, Conflicting conflicting) const {
    const std::int64_t bytes = items_[item].bytes;
    std::int64_t top = 0, best_gap = kUnlimited, best_begin = -1;
    for (const Range& range : ranges_) {
      const std::int64_t mask = -conflicting(range);
      const std::int64_t gap = (range.begin - top) & mask;
      if (gap >= bytes && gap < best_gap) {
        best_gap = gap;
        best_begin = top;
        if (fit == Fit::lowest || gap == bytes) break;
      }
      top = std::max(top, range.end & mask);
    }
    return best_begin >= 0 ? best_begin : top;
  }

  std::span<const PackItem> items_;
  const Conflicts& conflicts_;
  // By begin: all that are placed or, without a matrix, those that conflict with the item to place.
  std::vector<Range> ranges_;
  // Without a matrix, by item: the number of the last look that saw it.
  std::vector<std::int64_t> seen_;
  std::int64_t seen_last_ = 0;
  std::int64_t tests_ = 0;
};

class Packer {
 public:
  // Items that all live and have bytes.
  explicit Packer(std::span<const PackItem> items)
      : items_(items),
        events_(events_of(items)),
        curve_(live_curve(items, events_)),
        conflicts_(items, events_),
        orders_(items, curve_, conflicts_),
        placer_(items, conflicts_),
        live_peak_(*std::max_element(curve_.begin(), curve_.end())),
        bound_(live_peak_) {}

  Packing run() {
    try_named_orders();
    search(kSearchTests);
    if (items_.size() * items_.size() / 2 > static_cast<Index>(kDrawnTests)) {
      try_sweep();  // not even one order could be drawn
    } else {
      const std::int64_t before = best_.height;
      try_drawn_orders();
      if (best_.height < before) search(kDrawnTests);
    }
    return {.offsets = best_.offsets, .height = best_.height, .live_peak = live_peak_, .bound = bound_};
  }

 private:
  void try_named_orders() {
    for (int tried = 0; !finished(kOrderTests); ++tried) {
      // The first orders reach the peak of live bytes nearly always; only then is a better bound worth its
      // time.
      if (tried == 2 && conflicts_.is_matrix()) bound_ = heaviest_clique(items_, events_, conflicts_);
      const std::optional<PackingOrder> order = orders_.next_named();
      if (!order) return;
      for (const Fit fit : {Fit::tightest, Fit::lowest}) {
        try_order(*order, fit);
        if (finished(kOrderTests)) return;
      }
    }
  }

  void try_drawn_orders() {
    DrawSequence draws;
    const auto overhead = static_cast<std::int64_t>(kSortTests * items_.size());
    const std::int64_t end = placer_.tests() + kDrawnTests;
    for (std::int64_t round = 0; !finished(end - overhead * round); ++round) {
      PackingOrder order = orders_.drawn(draws);
      try_order(std::move(order), draws.below(2) == 0 ? Fit::tightest : Fit::lowest);
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

  void try_order(PackingOrder order, Fit fit) {
    Placed next{.order = std::move(order), .fit = fit, .offsets = {}};
    if (placer_.place(next, best_.height - 1)) best_ = std::move(next);
  }

  bool finished(std::int64_t tests) const {
    return best_.height - bound_ <= bound_ / kEnough || placer_.tests() > tests;
  }

  void search(std::int64_t tests) {
    const std::int64_t end = placer_.tests() + tests;
    const auto overhead = static_cast<std::int64_t>(items_.size());
    Placed current = best_, next;
    int fruitless = 0;
    for (std::int64_t round = 0; round < kSearchRounds && !finished(end - overhead * round); ++round) {
      next = current;
      change(next);
      const auto unlike = std::ranges::mismatch(current.order, next.order).in1 - current.order.begin();
      if (!placer_.place(next, current.height, static_cast<Index>(unlike))) {
        if (++fruitless % kPatience == 0) current = best_;
        continue;
      }
      std::swap(current, next);
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
    blockers_.clear();
    for (auto at = order.begin(); at != culprit; ++at) {
      if (conflicts_.test(*at, *culprit)) blockers_.push_back(at - order.begin());
    }
    if (!blockers_.empty()) {
      const auto blocker = order.begin() + blockers_[sequence_.below(blockers_.size())];
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
  PackingOrders orders_;
  Placer placer_;
  std::int64_t live_peak_;
  std::int64_t bound_;
  Placed best_;
  DrawSequence sequence_;
  std::vector<std::ptrdiff_t> blockers_;  // change() uses it; it is called too often to allocate one
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
