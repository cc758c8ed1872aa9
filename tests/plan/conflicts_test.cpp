#include "src/plan/conflicts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tessera {
namespace {

bool meet(const PackItem& a, const PackItem& b) {
  return std::ranges::any_of(a.lives, [&](const Lifetime& one) {
    return std::ranges::any_of(
        b.lives, [&](const Lifetime& other) { return one.first <= other.last && other.first <= one.last; });
  });
}

// Lives of up to `most` positions, `apart` of which lie between the first starts of two items on average;
// every 100th item has several lives, over all positions.
std::vector<PackItem> random_items(int count, int apart, int most) {
  std::mt19937 generator(1);
  const auto below = [&](int end) { return static_cast<int>(generator() % static_cast<unsigned>(end)); };
  std::vector<PackItem> items;
  for (int k = 0; k < count; ++k) {
    PackItem item{.bytes = 256, .lives = {}};
    const int lives = k % 100 == 0 ? 20 : 1;
    for (int from = below(lives > 1 ? most : count * apart); static_cast<int>(item.lives.size()) < lives;
         from += count * apart / lives) {
      const int first = std::max(from, item.lives.empty() ? 0 : item.lives.back().last + 1);
      item.lives.push_back({first, first + below(most)});
    }
    items.push_back(std::move(item));
  }
  return items;
}

void expect_all_that_meet(const std::vector<PackItem>& items, bool matrix) {
  const Conflicts conflicts(items, events_of(items));
  ASSERT_EQ(conflicts.is_matrix(), matrix);
  for (std::size_t item = 0; item < items.size(); item += 50) {
    std::vector<bool> found(items.size());
    const auto find = [&](std::size_t other) { found[other] = true; };
    matrix ? for_each(conflicts.row(item), find) : conflicts.each(item, find);
    for (std::size_t other = 0; other < items.size(); ++other) {
      if (other == item) continue;
      ASSERT_EQ(found[other], meet(items[item], items[other])) << item << " and " << other;
      ASSERT_EQ(conflicts.test(item, other), found[other]) << item << " and " << other;
    }
    EXPECT_FALSE(!matrix && found[item]);
  }
}

TEST(Conflicts, OfFewItems) { expect_all_that_meet(random_items(700, 2, 100), true); }
TEST(Conflicts, OfManyItemsFewOfThemAliveAtATime) {
  expect_all_that_meet(random_items(10'000, 2, 100), false);
}
TEST(Conflicts, OfManyItemsManyOfThemAliveAtATime) {
  expect_all_that_meet(random_items(10'000, 1, 8000), true);
}

}  // namespace
}  // namespace tessera
