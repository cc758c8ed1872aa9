#include "src/plan/packing_orders.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace tessera {
namespace {

using Index = std::size_t;

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

// All but the rivals, which take as long as the rest of a packing where items are many.
std::vector<PackTraits> traits_of(std::span<const PackItem> items, const std::vector<std::int64_t>& curve) {
  const RangeMax load(curve);
  const auto peak = static_cast<double>(*std::max_element(curve.begin(), curve.end()));
  std::vector<PackTraits> traits(items.size());
  for (Index item = 0; item < items.size(); ++item) {
    PackTraits& t = traits[item];
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

// What an order goes by: the first value, then the second, then the third.
using Keys = std::array<double, 3>;
using KeysOf = std::function<Keys(const PackTraits&)>;

// Items by descending keys, then in their own order.
PackingOrder order_by(const std::vector<PackTraits>& traits, const KeysOf& keys_of) {
  std::vector<Keys> keys;
  keys.reserve(traits.size());
  for (const PackTraits& t : traits) keys.push_back(keys_of(t));
  PackingOrder order(traits.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return keys[a] > keys[b]; });
  return order;
}

constexpr Index kFirstByRivals = 5;  // of the named orders

// Those that most often reach the bound come first. Only operations that IEEE 754 rounds correctly, so that
// all machines agree.
std::vector<KeysOf> named_orders() {
  std::vector<KeysOf> orders = {
      [](const PackTraits& t) {
        return Keys{t.bytes, -t.first};
      },
      [](const PackTraits& t) {
        return Keys{t.bytes, t.duration};
      },
      [](const PackTraits& t) {
        return Keys{t.duration, t.bytes};
      },
      [](const PackTraits& t) {
        return Keys{t.load, t.bytes};
      },
      [](const PackTraits& t) {
        return Keys{t.bytes * t.duration, -t.first};
      },
      [](const PackTraits& t) {
        return Keys{t.rivals, t.bytes};
      },
      [](const PackTraits& t) {
        return Keys{-t.first, t.bytes};
      },
      [](const PackTraits& t) {
        return Keys{t.bytes, t.rivals};
      },
  };
  // What is alive most of the time, and at the peak, at the bottom: sums of gradients over several
  // microbatches, say. What comes and goes then has all the room above to itself.
  for (const double least : {0.75, 0.5})
    for (const bool by_duration : {false, true})
      orders.emplace_back([=](const PackTraits& t) {
        const bool bottom = t.lives == 1 && t.load == 1 && t.last - t.first >= least;
        return Keys{bottom ? 1.0 : 0.0, t.bytes * (by_duration ? std::sqrt(t.duration) : 1.0), -t.first};
      });
  // Between those: the largest first, but what lives longer, near the peak, or earlier or later, counts more.
  for (const double slope : {0.0, -0.3, 0.3, -0.9, 0.9}) {
    for (const int powers_of_load : {0, 1, 4, 16, 64}) {
      for (const int roots_of_duration : {3, 2, 0}) {
        orders.emplace_back([=](const PackTraits& t) {
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

// Long lives one above the other, as they begin or end, and then the short ones between them: in a pipeline
// the activations of each microbatch then lie together, and what is short and large fits where they end. What
// counts as long, and how the short ones follow, is drawn: no one choice is good for all.
KeysOf drawn_keys(DrawSequence& draws, double longest) {
  const Index kind = draws.below(3), of_long = draws.below(3), of_short = draws.below(6);
  double least = longest;  // that counts as long
  for (Index i = draws.below(12) + 1; i > 0; --i) least /= 1.4;
  return [=](const PackTraits& t) {
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

}  // namespace

PackingOrders::PackingOrders(std::span<const PackItem> items, const std::vector<std::int64_t>& curve,
                             const Conflicts& conflicts)
    : items_(items),
      conflicts_(conflicts),
      traits_(traits_of(items, curve)),
      longest_(std::ranges::max(traits_, {}, &PackTraits::longest).longest) {}

std::optional<PackingOrder> PackingOrders::next_named() {
  static const std::vector<KeysOf> orders = named_orders();
  if (next_ == orders.size()) return std::nullopt;
  if (next_ == kFirstByRivals) add_rivals();
  return order_by(traits_, orders[next_++]);
}

PackingOrder PackingOrders::drawn(DrawSequence& draws) const {
  return order_by(traits_, drawn_keys(draws, longest_));
}

void PackingOrders::add_rivals() {
  for (Index item = 0; item < items_.size(); ++item)
    for_each(conflicts_.row(item),
             [&](Index rival) { traits_[item].rivals += static_cast<double>(items_[rival].bytes); });
}

}  // namespace tessera
