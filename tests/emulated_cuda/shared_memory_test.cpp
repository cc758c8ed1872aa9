// What the emulation refuses of a launch because a GPU would, and in which order a block's threads run and
// copy.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "kernels/cuda/shared_memory.h"
#include "tests/emulated_cuda/emulator.h"

// Of include/cuda_runtime.h, what cudaFuncSetAttribute calls there.
cudaError_t set_dynamic_shared_bytes(const void* kernel, int bytes);

namespace tessera::emulated_cuda {
namespace {

void kernel() {}
void another() {}
void third() {}

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
  EXPECT_LT(most, 163 * 1024) << "some is the kernel's own";
  EXPECT_EQ(kernels::cuda::most_shared(kThird), most);
  EXPECT_EQ(allow_shared(kThird, kMore), cudaSuccess);
}

// Else a kernel that lacks a barrier could be right here, and wrong on a GPU.
TEST(Blocks, RunFromTheFirstThreadAndFromTheLast) {
  constexpr unsigned kThreads = 64;
  static std::array<int, 4> first;
  static std::array<float, kThreads> before;
  first.fill(-1);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(launch(stream, {4}, {kThreads}, 0,
                   [] {
                     if (first[blockIdx.x] < 0) first[blockIdx.x] = static_cast<int>(threadIdx.x);
                     before[threadIdx.x] = __shfl_xor_sync(~0u, static_cast<float>(threadIdx.x), 1);
                   }),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  for (const int one : {0, 1}) EXPECT_EQ(first[one] + first[one + 1], kThreads - 1) << first[one];
  for (unsigned thread = 0; thread < kThreads; ++thread)
    EXPECT_EQ(before[thread], static_cast<float>(thread ^ 1)) << thread;
}

// Else a kernel that does not wait for a copy, or overwrites what is still to be read, could be right here.
TEST(Copies, ArriveAtOnceOrWhenTheyAreWaitedFor) {
  constexpr int kThreads = 32, kBlocks = 2, kFloats = 4;
  static std::array<float, kFloats> source = {1, 2, 3, 4};
  static std::array<std::array<bool, 3>, kBlocks> arrived;  // when asked for, behind one group, waited for
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(launch(stream, {kBlocks}, {kThreads}, sizeof source,
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
                   }),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_NE(arrived[0][0], arrived[1][0]);
  for (const auto& block : arrived) {
    EXPECT_EQ(block[1], block[0]);
    EXPECT_TRUE(block[2]);
  }
}

}  // namespace
}  // namespace tessera::emulated_cuda
