// Kernels with a bug in them, one of each kind that hardware does not forgive: the emulation finds each.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "kernels/context.h"
#include "kernels/cuda/start.cuh"
#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/kernels.h"
#include "tests/emulated_cuda/run_kernel.h"
#include "tests/refusal.h"

namespace tessera::emulated_cuda {
namespace {

constexpr unsigned kThreads = 64;

class StrictKernel : public ::testing::Test {
 protected:
  StrictKernel() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
using StrictKernelDeathTest = StrictKernel;

std::array<float, kThreads> seen;
float* output = nullptr;  // of a kernel, in the GPU's memory

void reads_static_shared() {
  __shared__ float never_written[kThreads];
  seen[threadIdx.x] = never_written[threadIdx.x];
}
void reads_dynamic_shared() { seen[threadIdx.x] = dynamic_shared()[threadIdx.x]; }

TEST_F(StrictKernel, SharedMemoryHoldsNaNUntilItIsWritten) {
  seen.fill(0);
  run_kernel(reads_static_shared, {1}, {kThreads});
  for (const float value : seen) EXPECT_TRUE(std::isnan(value));
  seen.fill(0);
  run_kernel(reads_dynamic_shared, {1}, {kThreads}, kThreads * sizeof(float));
  for (const float value : seen) EXPECT_TRUE(std::isnan(value));
}

// What the block before left is no help.
void keeps_shared() {
  __shared__ float kept;
  if (blockIdx.x == 0) kept = 1;
  if (threadIdx.x == 0) seen[blockIdx.x] = kept;
}
TEST_F(StrictKernel, SharedMemoryIsOfOneBlock) {
  seen.fill(0);
  run_kernel(keeps_shared, {kThreads}, {1});
  for (unsigned block = 1; block < kThreads; ++block) EXPECT_TRUE(std::isnan(seen[block])) << block;
}

void reads_a_neighbour_without_a_barrier() {
  __shared__ float value[kThreads];
  value[threadIdx.x] = 1;
  seen[threadIdx.x] = value[(threadIdx.x + 1) % kThreads];
}
TEST_F(StrictKernel, AMissingBarrierShowsInOneOfTwoBlocks) {
  seen.fill(1);
  bool wrong = false;
  for (int block = 0; block < 2; ++block) {
    run_kernel(reads_a_neighbour_without_a_barrier, {1}, {kThreads});
    for (const float value : seen) wrong |= std::isnan(value);
  }
  EXPECT_TRUE(wrong);
}

void writes_beyond_dynamic_shared() { dynamic_shared()[kThreads] = 1; }
TEST_F(StrictKernelDeathTest, DynamicSharedMemoryHasAnEnd) {
  EXPECT_DEATH(run_kernel(writes_beyond_dynamic_shared, {1}, {1}, kThreads * sizeof(float)), "");
}

void last_block_wins() { *output = static_cast<float>(blockIdx.x); }
void each_block_has_its_own() { output[blockIdx.x] = static_cast<float>(blockIdx.x); }
void run_compared(void (*kernel)()) {
  setenv("EMULATED_CUDA_COMPARE", "1", 1);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64 * sizeof(float)), cudaSuccess);
  output = static_cast<float*>(memory);
  run_kernel(kernel, {64}, {1});
}
TEST_F(StrictKernelDeathTest, AResultThatDependsOnTheOrderOfBlocksIsFound) {
  EXPECT_DEATH(run_compared(last_block_wins), "last_block_wins.*depends on the order of blocks");
}
TEST_F(StrictKernelDeathTest, AResultThatDoesNotIsLeft) {
  EXPECT_EXIT((run_compared(each_block_has_its_own), std::_Exit(0)), ::testing::ExitedWithCode(0), "");
}

float shuffled(float value) { return __shfl_xor_sync(~0u, value, 1); }

void shuffles_with_a_lane_that_left() {
  if (threadIdx.x == 5) return;
  seen[threadIdx.x] = shuffled(1);
}
TEST_F(StrictKernelDeathTest, AShuffleWithALaneThatLeft) {
  EXPECT_DEATH(run_kernel(shuffles_with_a_lane_that_left, {1}, {32}),
               "shuffles_with_a_lane_that_left.*mask names thread \\(5, 0\\), which has ended");
}

void reads_a_lane_outside_the_mask() { seen[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 16); }
void half_a_warp_shuffles() {
  if (threadIdx.x < 16) reads_a_lane_outside_the_mask();
}
TEST_F(StrictKernelDeathTest, AShuffleWithALaneOutsideItsMask) {
  EXPECT_DEATH(run_kernel(half_a_warp_shuffles, {1}, {32}), "reads a lane that its mask does not name");
}

void half_a_warp_exchanges() {
  if (threadIdx.x < 16) seen[threadIdx.x] = __shfl_xor_sync(0xffffu, static_cast<float>(threadIdx.x), 8);
}
TEST_F(StrictKernel, AMaskOfPartOfAWarpIsEnough) {
  run_kernel(half_a_warp_exchanges, {1}, {32});
  for (unsigned lane = 0; lane < 16; ++lane) EXPECT_EQ(seen[lane], static_cast<float>(lane ^ 8));
}

void shuffles_in_two_places() {
  if (threadIdx.x % 2 == 0)
    seen[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
  else
    seen[threadIdx.x] = __shfl_xor_sync(~0u, 2.0f, 1);
}
TEST_F(StrictKernelDeathTest, LanesAtDifferentShuffles) {
  EXPECT_DEATH(run_kernel(shuffles_in_two_places, {1}, {32}),
               "shuffles_in_two_places.*strict_kernel_test.cpp:.*lanes of a warp are at different shuffles");
}

void barriers_in_two_places() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}
TEST_F(StrictKernelDeathTest, ABarrierAtDifferentPlaces) {
  EXPECT_DEATH(run_kernel(barriers_in_two_places, {1}, {kThreads}),
               "barriers_in_two_places.*threads of a block are at different barriers");
}

void a_lane_waits_where_the_warp_shuffles() {
  if (threadIdx.x == 0)
    __syncthreads();
  else
    seen[threadIdx.x] = shuffled(1);
}
TEST_F(StrictKernelDeathTest, ABarrierThatOthersDoNotReach) {
  EXPECT_DEATH(run_kernel(a_lane_waits_where_the_warp_shuffles, {1}, {32}), "which others do not reach");
}

void some_leave_before_the_barrier() {
  if (threadIdx.x >= 32) return;
  __syncthreads();
  seen[threadIdx.x] = 3;
}
TEST_F(StrictKernel, ABarrierDoesNotWaitForThreadsThatLeft) {
  seen.fill(0);
  run_kernel(some_leave_before_the_barrier, {1}, {kThreads});
  EXPECT_EQ(seen[31], 3);
  EXPECT_EQ(seen[32], 0);
}

// Else launches would be held to nothing. A kernel may be newer than the table, where there is no nvcc.
TEST_F(StrictKernel, TheTableListsTheProgramsKernels) {
  const Listed listed = listed_kernels();
  EXPECT_GE(listed.kernels, 150U);
  EXPECT_GE(listed.found, listed.kernels * 9 / 10);
}

// Launches that a GPU refuses.
void wide_kernel() {}
void hungry_kernel() {}
void large_kernel() {}
void plain_kernel() {}

cudaError_t try_launch(void (*kernel)(), dim3 blocks, dim3 threads, std::size_t shared_bytes = 0) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const KernelCall call = {.kernel = reinterpret_cast<const void*>(kernel),
                           .blocks = blocks,
                           .threads = threads,
                           .shared_bytes = shared_bytes};
  const cudaError_t result = launch(stream, call, kernel);
  EXPECT_EQ(cudaGetLastError(), result);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  return result;
}

TEST_F(StrictKernel, MoreThreadsThanTheLaunchBoundsAllow) {
  set_limits(reinterpret_cast<const void*>(&wide_kernel), {.most_threads = 128, .registers = {32, 32, 32}});
  EXPECT_EQ(try_launch(wide_kernel, {1}, {128}), cudaSuccess);
  EXPECT_EQ(try_launch(wide_kernel, {1}, {160}), cudaErrorInvalidValue);
}

TEST_F(StrictKernel, MoreRegistersThanABlockHas) {
  set_limits(reinterpret_cast<const void*>(&hungry_kernel), {.registers = {128, 128, 129}});
  EXPECT_EQ(try_launch(hungry_kernel, {1}, {480}), cudaSuccess);
  EXPECT_EQ(try_launch(hungry_kernel, {1}, {512}), cudaErrorLaunchOutOfResources) << "on an sm_100: 136 each";
}

TEST_F(StrictKernel, MoreSharedMemoryThanABlockHas) {
  constexpr int kOwn = 4096;
  set_limits(reinterpret_cast<const void*>(&large_kernel), {.static_shared_bytes = {kOwn, kOwn, kOwn}});
  EXPECT_EQ(try_launch(large_kernel, {1}, {32}, kPlainSharedBytes - kOwn), cudaSuccess);
  EXPECT_EQ(try_launch(large_kernel, {1}, {32}, kPlainSharedBytes - kOwn + 16), cudaErrorInvalidValue);
  const int most = static_cast<int>(architecture().most_shared_bytes) - kOwn;
  EXPECT_EQ(cudaFuncSetAttribute(large_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(large_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
            cudaSuccess);
  EXPECT_EQ(try_launch(large_kernel, {1}, {32}, static_cast<std::size_t>(most)), cudaSuccess);
  EXPECT_EQ(try_launch(large_kernel, {1}, {32}, static_cast<std::size_t>(most) + 16), cudaErrorInvalidValue);
}

TEST_F(StrictKernel, GridsAndBlocksThatNoGpuHas) {
  for (const auto& [blocks, threads] : {std::pair<dim3, dim3>{{0}, {32}},
                                        {{1}, {0}},
                                        {{1}, {1056}},
                                        {{0x80000000u}, {32}},
                                        {{1, 0x10000}, {32}}})
    EXPECT_EQ(try_launch(plain_kernel, blocks, threads), cudaErrorInvalidConfiguration)
        << blocks.x << "x" << blocks.y << " blocks of " << threads.x;
}

TEST_F(StrictKernel, ARefusedLaunchNamesTheOperation) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const kernels::ComputeContext context = {
      .threads = 1, .workspace = {}, .device = DeviceType::cuda, .stream = stream};
  set_limits(reinterpret_cast<const void*>(&wide_kernel), {.most_threads = 128});
  const std::string text = testing::refusal<EnvironmentError>(
      [&] { kernels::cuda::start(context, "softmax", {.blocks = {1}, .threads = {256}}, wide_kernel); });
  testing::expect_words(text, {"softmax failed", "cudaErrorInvalidValue"});
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace tessera::emulated_cuda
