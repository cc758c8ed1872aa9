// A slice of attention as a graph of cuDNN. Needs libcudnn to be loaded, a GPU only to run.
#pragma once

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

#include <memory>

#include "kernels/cuda/cudnn_layout.h"

namespace tessera::kernels::cuda {

// What the graph calls its tensors.
enum CudnnTensor : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOutput,
  kStatistics,
  kOutputGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient
};

// `capability`: of the GPU, ten times its major number and its minor one.
std::unique_ptr<cudnn_frontend::graph::Graph> describe_attention(const AttentionShape& shape,
                                                                 const AttentionSlice& slice, bool backward,
                                                                 int capability);

// Compiles for the handle's GPU, or without a handle for the device properties that were set.
// UnsupportedError naming the reason where no kernel does it deterministically within `workspace_bytes`.
void compile_attention(cudnn_frontend::graph::Graph& graph, cudnnHandle_t handle, const AttentionShape& shape,
                       std::int64_t workspace_bytes);

}  // namespace tessera::kernels::cuda
