// Who has which cache of kernels/cuda/kept.h.
#include "kernels/cuda/kept.h"

#include <gtest/gtest.h>

#include <latch>
#include <set>
#include <thread>

namespace tessera::kernels::cuda {
namespace {

struct Cache {
  int uses = 0;
};

TEST(Kept, IsLeftToTheNextThread) {
  for (int use = 1; use <= 3; ++use) {
    int seen = 0;
    std::thread([&] { seen = ++kept<Cache>().uses; }).join();
    EXPECT_EQ(seen, use);
  }
}

TEST(Kept, ServesOneThreadAtATime) {
  struct Own : Cache {};
  constexpr int kThreads = 4;
  for (int round = 0; round < 2; ++round) {
    std::latch all_have_one(kThreads);
    std::mutex mutex;
    std::set<Own*> owned;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([&] {
        Own* const own = &kept<Own>();
        all_have_one.arrive_and_wait();
        EXPECT_EQ(&kept<Own>(), own);
        const std::lock_guard lock(mutex);
        owned.insert(own);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(owned.size(), static_cast<std::size_t>(kThreads)) << round;
  }
}

}  // namespace
}  // namespace tessera::kernels::cuda
