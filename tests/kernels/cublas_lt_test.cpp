#include "kernels/cuda/cublas_lt.h"

#include <gtest/gtest.h>

namespace tessera::kernels::testing {
namespace {

TEST(CudaLibraries, HaveEveryFunction) { EXPECT_NE(cuda::cublas_lt().cublasLtMatmul, nullptr); }

}  // namespace
}  // namespace tessera::kernels::testing
