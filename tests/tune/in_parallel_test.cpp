// Calls by several threads give what one thread gives.
#include "src/tune/in_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tessera {
namespace {

std::vector<int> called(std::size_t count, std::size_t first_false, std::size_t& made) {
  std::vector<std::atomic<int>> calls(count);
  made = in_parallel(count, [&](std::size_t k) {
    ++calls[k];
    // The later ones end first, so that several may say no before the first of them does.
    std::this_thread::sleep_for(std::chrono::microseconds(10 * (count - k)));
    return k < first_false || k % 2 == 1;
  });
  return {calls.begin(), calls.end()};
}

TEST(InParallel, MakesEveryCallUpToTheFirstThatSaysNoOnce) {
  for (std::size_t count : {1, 2, 3, 7, 40})
    for (std::size_t first_false : {0, 2, 4, 38, 40}) {
      std::size_t made = 0;
      const std::vector<int> calls = called(count, first_false, made);
      EXPECT_EQ(made, std::min(count, first_false + 1)) << count << " " << first_false;
      for (std::size_t k = 0; k < count; ++k)
        if (k < made)
          EXPECT_EQ(calls[k], 1) << k;
        else
          EXPECT_LE(calls[k], 1) << k;
    }
  EXPECT_EQ(in_parallel(0, [](std::size_t) { return false; }), 0u);
}

TEST(InParallel, ThrowsWhatTheFirstCallThrew) {
  for (int round = 0; round < 50; ++round) try {
      in_parallel(20, [](std::size_t k) -> bool {
        std::this_thread::sleep_for(std::chrono::microseconds(5 * (20 - k)));
        if (k >= 3) throw std::runtime_error("call " + std::to_string(k));
        return true;
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "call 3");
    }
}

// What follows a call that says no is not what was asked for: its error is nobody's.
TEST(InParallel, ForgetsErrorsBehindTheEnd) {
  for (int round = 0; round < 50; ++round)
    EXPECT_EQ(in_parallel(20,
                          [](std::size_t k) -> bool {
                            std::this_thread::sleep_for(std::chrono::microseconds(5 * (20 - k)));
                            if (k > 3) throw std::runtime_error("behind the end");
                            return k < 3;
                          }),
              4u);
}

TEST(InParallel, WorksOnAllCores) {
  const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1u);
  std::atomic<std::size_t> running = 0, most = 0;
  in_parallel(4 * cores, [&](std::size_t) {
    const std::size_t now = ++running;
    for (std::size_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    --running;
    return true;
  });
  EXPECT_GE(most, std::min<std::size_t>(cores, 2));
  EXPECT_LE(most, cores);
}

}  // namespace
}  // namespace tessera
