// Streams that end while others are given work.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

namespace tessera::emulated_cuda {
namespace {

// What is copied on the legacy stream comes behind all that such streams were given, destroyed ones included,
// whose threads may be ending at that moment.
TEST(EndingStreams, HoldUpNoCopy) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  for (int i = 0; i < 2000; ++i) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(memory, i % 100, 4, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    unsigned char bytes[4] = {};
    ASSERT_EQ(cudaMemcpy(bytes, memory, sizeof bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    ASSERT_EQ(bytes[3], i % 100);
  }
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

}  // namespace
}  // namespace tessera::emulated_cuda
