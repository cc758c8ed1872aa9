#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tessera/device.h"
#include "tessera/error.h"

namespace tessera {
namespace {

TEST(FailureFlag, KeepsTheFirstCauseAndItsType) {
  FailureFlag flag;
  EXPECT_FALSE(flag.failed());
  EXPECT_NO_THROW(flag.rethrow());
  EXPECT_EQ(flag.message(), "");
  const FailureFlag copy = flag;
  EXPECT_TRUE(flag.set(std::make_exception_ptr(UsageError("first"))));
  EXPECT_FALSE(flag.set("second"));
  EXPECT_TRUE(copy.failed());
  EXPECT_EQ(copy.message(), "first");
  EXPECT_THROW(copy.rethrow(), UsageError);
}

TEST(FailureFlag, RunsHooksOnceWithTheMessage) {
  FailureFlag flag;
  int calls = 0;
  flag.on_failure([&](const std::string& message) {
    ++calls;
    EXPECT_EQ(message, "boom");
  });
  flag.set("boom");
  flag.set("again");
  EXPECT_EQ(calls, 1);
  flag.on_failure([&](const std::string&) { ++calls; });
  EXPECT_EQ(calls, 2) << "a hook that comes late runs at once";
}

TEST(FailureFlag, OneOfManyThreadsIsFirst) {
  FailureFlag flag;
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] { winners += flag.set(std::to_string(i)) ? 1 : 0; });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(winners.load(), 1);
}

TEST(ByteCounters, KeepPeaksPerCategoryAndInTotal) {
  ByteCounters counters;
  counters.add(Category::parameters, 100);
  counters.add(Category::activations, 50);
  counters.add(Category::activations, -50);
  counters.add(Category::gradients, 20);
  EXPECT_EQ(counters.current(Category::activations), 0);
  EXPECT_EQ(counters.peak(Category::activations), 50);
  EXPECT_EQ(counters.current(Category::parameters), 100);
  EXPECT_EQ(counters.current_total(), 120);
  EXPECT_EQ(counters.peak_total(), 150);
}

}  // namespace
}  // namespace tessera
