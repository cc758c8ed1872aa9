// What needs a GPU. Each test skips, saying why, where none can be used.
#include <gtest/gtest.h>

#include "tessera/device.h"

namespace tessera {
namespace {

TEST(CudaMachine, DescribesEachGpu) {
  const CudaMachine machine = read_cuda_machine();
  if (!machine.unusable.empty()) GTEST_SKIP() << machine.unusable;
  EXPECT_FALSE(machine.driver.empty());
  ASSERT_FALSE(machine.gpus.empty());
  for (const CudaGpu& gpu : machine.gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.memory_bytes, std::int64_t{1} << 30);
    EXPECT_GE(gpu.major, 7);
    EXPECT_GT(gpu.multiprocessors, 0);
  }
}

}  // namespace
}  // namespace tessera
