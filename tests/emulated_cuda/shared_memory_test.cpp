// What the emulation refuses of a launch because a GPU would, and in which order a block's threads run.
#include <gtest/gtest.h>

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
  EXPECT_TRUE(kernels::cuda::can_share(kThird, kMore));
  EXPECT_TRUE(kernels::cuda::can_share(kThird, 60 * 1024));
  EXPECT_EQ(allow_shared(kThird, kMore), cudaSuccess);
  EXPECT_FALSE(kernels::cuda::can_share(kThird, 163 * 1024)) << "some is the kernel's own";
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

}  // namespace
}  // namespace tessera::emulated_cuda
