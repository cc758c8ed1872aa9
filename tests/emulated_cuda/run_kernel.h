// Runs a kernel of a test's own on the current GPU.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "tests/emulated_cuda/emulator.h"

namespace tessera::emulated_cuda {

// Launches it, as many threads as the call says calling `thread`, and waits for it.
inline void run_kernel(const KernelCall& call, const std::function<void()>& thread) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(launch(stream, call, thread), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// A kernel without parameters.
inline void run_kernel(void (*kernel)(), dim3 blocks, dim3 threads, std::size_t shared_bytes = 0) {
  run_kernel({.kernel = reinterpret_cast<const void*>(kernel),
              .blocks = blocks,
              .threads = threads,
              .shared_bytes = shared_bytes},
             kernel);
}

}  // namespace tessera::emulated_cuda
