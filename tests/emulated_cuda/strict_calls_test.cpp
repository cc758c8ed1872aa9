// What CUDA's calls do where something is wrong, or late: errors that stay, errors that nobody looked at,
// events that are not seen at once, streams that share a queue of the hardware.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "kernels/cuda/start.cuh"
#include "src/device/host_words.h"
#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/gpu_rank.h"
#include "tests/emulated_cuda/hardware_queue.h"
#include "tests/emulated_cuda/run_kernel.h"
#include "tests/emulated_cuda/stream_work.h"
#include "tests/refusal.h"

namespace tessera::emulated_cuda {
namespace {

using std::chrono::milliseconds;
using testing::expect_words;
using testing::refusal;

void kernel() {}

class StrictCalls : public ::testing::Test {
 protected:
  StrictCalls() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
using StrictCallsDeathTest = StrictCalls;

TEST_F(StrictCalls, AnErrorStaysUntilItIsAskedFor) {
  fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void *first = nullptr, *second = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 8), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(second, nullptr);
  int ordinal = -1;
  EXPECT_EQ(cudaGetDevice(&ordinal), cudaSuccess) << "other calls go on";
  std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "of another thread"; }).join();
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
}

// A call that nobody checked shows at the next kernel, which is blamed for it.
TEST_F(StrictCalls, AnErrorThatWasNotLookedAtIsTheNextKernels) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const kernels::ComputeContext context = {
      .threads = 1, .workspace = {}, .device = DeviceType::cuda, .stream = stream};
  const auto start = [&] { kernels::cuda::start(context, "gelu", {.blocks = {1}, .threads = {32}}, kernel); };
  fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
  void* memory = nullptr;
  cudaMalloc(&memory, 8);
  expect_words(refusal<EnvironmentError>(start), {"gelu failed", "cudaErrorMemoryAllocation"});
  EXPECT_EQ(refusal<EnvironmentError>(start), "accepted");
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(StrictCalls, AFaultIsTheErrorOfEveryCallOfThatGpu) {
  constexpr int kBroken = 4;
  ASSERT_EQ(cudaSetDevice(kBroken), cudaSuccess);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  break_gpu_behind(stream, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress) << "it is not cleared";
    EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaEventQuery(event), cudaErrorIllegalAddress);
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorIllegalAddress);
    bool ran = false;
    const KernelCall call = {.kernel = reinterpret_cast<const void*>(&kernel), .blocks = {1}, .threads = {1}};
    EXPECT_EQ(launch(stream, call, [&] { ran = true; }), cudaErrorIllegalAddress);
    EXPECT_FALSE(ran);
  }
  std::thread([] {
    int count = 0;
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess) << "of a thread on another GPU";
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }).join();
  mend_gpu(kBroken);
  cudaGetLastError();
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

// A device whose GPU has a fault fails with it, and destructors end all the same.
TEST_F(StrictCalls, ADeviceSaysThatItsGpuHasAFault) {
  constexpr int kBroken = 5;
  {
    const auto device = make_cuda_device({.rank = 2, .ordinal = kBroken});
    const auto stream = device->make_stream({.name = "gpu", .cpus = {}});
    break_gpu_behind(static_cast<cudaStream_t>(stream->native()), cudaErrorIllegalAddress);
    expect_words(refusal<EnvironmentError>([&] { stream->synchronize(); }),
                 {"rank 2", "GPU 5", "cudaErrorIllegalAddress"});
    EXPECT_TRUE(device->failure().failed());
    expect_words(refusal<EnvironmentError>([&] { device->make_arena(8); }), {"cudaErrorIllegalAddress"});
  }
  mend_gpu(kBroken);
  cudaGetLastError();
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST_F(StrictCalls, AnEventIsSeenLateButSeen) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  int late = 0;
  be_slow_to_see(2);
  for (int time = 0; time < 100; ++time) {
    ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
    int asked = 0;
    while (cudaEventQuery(event) == cudaErrorNotReady) ++asked;
    EXPECT_LE(asked, 2);
    late += asked > 0 ? 1 : 0;
  }
  EXPECT_GE(late, 20);
  be_slow_to_see(8);
  cudaGetLastError();
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Exits with 0 where a stream goes on beside one that waits for a word, with 3 where it is held up behind it.
void wait_beside(const char* connections) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
  cudaStream_t waits = nullptr, works = nullptr;
  cudaStreamCreate(&waits);
  cudaStreamCreate(&works);
  static device::HostWords::Word word{0};
  device::HostWords(0, device::HostWords::find_calls()).enqueue_wait(waits, word, 1);
  static std::atomic<bool> done = false;
  work_of(works)->give([] { done = true; });
  std::this_thread::sleep_for(milliseconds(200));
  const bool beside = done;
  word.store(1);
  cudaStreamSynchronize(works);
  std::_Exit(!done ? 2 : beside ? 0 : 3);
}
TEST_F(StrictCallsDeathTest, StreamsWithQueuesOfTheirOwnDoNotWaitForEachOther) {
  EXPECT_EXIT(wait_beside("2"), ::testing::ExitedWithCode(0), "");
}
TEST_F(StrictCallsDeathTest, AStreamIsHeldUpBehindAnothersWaitInItsQueue) {
  EXPECT_EXIT(wait_beside("1"), ::testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace tessera::emulated_cuda
