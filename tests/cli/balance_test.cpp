// Who computes longest, and when that is told.
#include "src/cli/balance.h"

#include <gtest/gtest.h>

namespace tessera::cli {
namespace {

TEST(Balance, NamesTheFastestAndTheSlowestRank) {
  run_local(4, {}, [](Communicator world) {
    const double busy[] = {3e6, 1e6, 3e6, 2e6};
    const Balance found = balance_of(
        world,
        {.total_us = busy[world.rank()] + 5e5, .issue_us = 0, .communication_us = 9e6, .exposed_us = 5e5});
    EXPECT_DOUBLE_EQ(found.least_seconds, 1.0);
    EXPECT_DOUBLE_EQ(found.most_seconds, 3.0);
    EXPECT_EQ(found.fastest, 1);
    EXPECT_EQ(found.slowest, 0);
  });
}

TEST(Balance, ARankThatLagsIsToldOnceAndOnlyIfItKeepsLagging) {
  const Balance even{.least_seconds = 1.0, .most_seconds = 1.4, .fastest = 0, .slowest = 1};
  const Balance first{.least_seconds = 1.0, .most_seconds = 1.6, .fastest = 0, .slowest = 1};
  const Balance other{.least_seconds = 1.0, .most_seconds = 1.6, .fastest = 0, .slowest = 2};
  LagWatch watch;
  for (const Balance& balance : {first, first, even, first, other, first, first})
    EXPECT_FALSE(watch.lagging(balance)) << "not three in a row of one rank";
  EXPECT_EQ(watch.lagging(first), 1);
  for (int again = 0; again < 5; ++again) EXPECT_FALSE(watch.lagging(first));
  LagWatch idle;
  for (int again = 0; again < 5; ++again) EXPECT_FALSE(idle.lagging({})) << "of steps that were not traced";
}

}  // namespace
}  // namespace tessera::cli
