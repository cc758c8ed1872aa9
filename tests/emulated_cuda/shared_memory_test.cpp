// What the emulation refuses of a launch because a GPU would.
#include <gtest/gtest.h>

#include "tests/emulated_cuda/emulator.h"

// Of include/cuda_runtime.h, what cudaFuncSetAttribute calls there.
cudaError_t set_dynamic_shared_bytes(const void* kernel, int bytes);

namespace tessera::emulated_cuda {
namespace {

void kernel() {}
void another() {}

const void* const kFirst = reinterpret_cast<const void*>(&kernel);
const void* const kSecond = reinterpret_cast<const void*>(&another);

TEST(SharedMemory, BeyondWhatABlockHasByItselfIsAskedForByEachKernel) {
  constexpr int kAsked = 60 * 1024;
  EXPECT_EQ(allow_shared(kFirst, 48 * 1024), cudaSuccess);
  EXPECT_NE(allow_shared(kFirst, kAsked), cudaSuccess);
  ASSERT_EQ(set_dynamic_shared_bytes(kFirst, kAsked), cudaSuccess);
  EXPECT_EQ(allow_shared(kFirst, kAsked), cudaSuccess);
  EXPECT_NE(allow_shared(kFirst, kAsked + 1), cudaSuccess);
  EXPECT_NE(allow_shared(kSecond, kAsked), cudaSuccess);
}

}  // namespace
}  // namespace tessera::emulated_cuda
