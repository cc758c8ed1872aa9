// What the emulation refuses of a launch because a GPU would, and in which order a block's threads run and
// copy.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "kernels/cuda/shared_memory.h"
#include "tests/emulated_cuda/run_kernel.h"

// Of include/cuda_runtime.h, what cudaFuncSetAttribute calls there.
cudaError_t set_dynamic_shared_bytes(const void* kernel, int bytes);

namespace tessera::emulated_cuda {
namespace {

void kernel() {}
void another() {}
void third() {
  __shared__ double own[64];
  own[threadIdx.x] = 0;
}

const void* const kFirst = reinterpret_cast<const void*>(&kernel);
const void* const kSecond = reinterpret_cast<const void*>(&another);
const void* const kThird = reinterpret_cast<const void*>(&third);

TEST(SharedMemory, BeyondWhatABlockHasByItselfIsAskedForByEachKernel) {
  constexpr int kAsked = 60 * 1024;
  EXPECT_EQ(allow_shared(kFirst, 48 * 1024), cudaSuccess);
  EXPECT_NE(allow_shared(kFirst, kAsked), cudaSuccess);
  ASSERT_EQ(set_dynamic_shared_bytes(kFirst, kAsked), cudaSuccess);
  EXPECT_EQ(allow_shared(kFirst, kAsked), cudaSuccess);
  EXPECT_NE(allow_shared(kFirst, kAsked + 1), cudaSuccess);
  EXPECT_NE(allow_shared(kSecond, kAsked), cudaSuccess);
}

// Threads that share a GPU launch a kernel on rows of several widths.
TEST(SharedMemory, WhoNeedsLessTakesNothingFromWhoNeedsMore) {
  constexpr int kMore = 160 * 1024;
  const std::int64_t most = kernels::cuda::most_shared(kThird);
  EXPECT_GE(most, kMore);
  EXPECT_EQ(most, 163 * 1024 - 64 * 8) << "some is the kernel's own";
  EXPECT_EQ(kernels::cuda::most_shared(kThird), most);
  EXPECT_EQ(allow_shared(kThird, kMore), cudaSuccess);
}

// Else a kernel that lacks a barrier could be right here, and wrong on a GPU.
TEST(Blocks, RunTheirThreadsInOrdersAndTheOpposite) {
  constexpr unsigned kThreads = 64, kBlocks = 64;
  static std::vector<std::vector<unsigned>> orders;
  static std::array<float, kThreads> before;
  orders.clear();
  run_kernel({.kernel = kFirst, .blocks = {kBlocks}, .threads = {kThreads}}, [] {
    if (orders.empty() || orders.back().size() == kThreads) orders.emplace_back();
    orders.back().push_back(threadIdx.x);
    before[threadIdx.x] = __shfl_xor_sync(~0u, static_cast<float>(threadIdx.x), 1);
  });
  for (unsigned thread = 0; thread < kThreads; ++thread)
    EXPECT_EQ(before[thread], static_cast<float>(thread ^ 1)) << thread;
  ASSERT_EQ(orders.size(), kBlocks);
  const std::set different(orders.begin(), orders.end());
  EXPECT_GE(different.size(), kBlocks / 4);
  std::size_t with_opposite = 0;
  for (std::vector<unsigned> order : orders) {
    std::ranges::reverse(order);
    with_opposite += different.count(order);
  }
  EXPECT_GE(with_opposite, kBlocks - 2) << "all but the first and the last, which others may have begun";
}

TEST(Blocks, RunInAnOrderThatIsDrawn) {
  constexpr unsigned kAcross = 5, kDown = 7;
  static std::vector<std::pair<unsigned, unsigned>> order;
  std::set<std::vector<std::pair<unsigned, unsigned>>> orders;
  for (int launch = 0; launch < 20; ++launch) {
    order.clear();
    run_kernel({.kernel = kFirst, .blocks = {kAcross, kDown}, .threads = {1}},
               [] { order.emplace_back(blockIdx.x, blockIdx.y); });
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), std::size_t{kAcross * kDown});
    EXPECT_EQ(std::ranges::max(order), std::pair(kAcross - 1, kDown - 1));
    orders.insert(order);
  }
  EXPECT_GE(orders.size(), 15U);
}

// Else a kernel that does not wait for a copy, or overwrites what is still to be read, could be right here.
TEST(Copies, ArriveAtOnceOrWhenTheyAreWaitedFor) {
  constexpr int kThreads = 32, kBlocks = 2, kFloats = 4;
  static std::array<float, kFloats> source = {1, 2, 3, 4};
  static std::array<std::array<bool, 3>, kBlocks> arrived;  // when asked for, behind one group, waited for
  run_kernel({.kernel = kFirst, .blocks = {kBlocks}, .threads = {kThreads}, .shared_bytes = sizeof source},
             [] {
               if (threadIdx.x != 0) return;
               const auto look = [&](int when) {
                 arrived[blockIdx.x][static_cast<std::size_t>(when)] =
                     std::equal(source.begin(), source.end(), dynamic_shared());
               };
               copy_async(dynamic_shared(), source.data());
               close_copies();
               look(0);
               wait_for_copies(1);
               look(1);
               wait_for_copies(0);
               look(2);
             });
  EXPECT_NE(arrived[0][0], arrived[1][0]);
  for (const auto& block : arrived) {
    EXPECT_EQ(block[1], block[0]);
    EXPECT_TRUE(block[2]);
  }
}

}  // namespace
}  // namespace tessera::emulated_cuda
