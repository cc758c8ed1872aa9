// Attention by cuDNN where the build has it: forward and a deterministic backward, in bf16, of the shapes
// that cudnn_layout.h names. no_cudnn.cpp is its twin. Nothing falls back on a failure: UnsupportedError
// where cuDNN has no plan for this GPU, EnvironmentError where the library or a call fails.
#pragma once

#include "kernels/attention.h"

namespace tessera::kernels::cuda {

// By the build and the shape alone; false in a build without cuDNN.
bool cudnn_takes_forward(const AttentionShape& shape);
bool cudnn_takes_backward(const AttentionShape& shape);

// As attention_forward() and attention_backward(), for shapes that it takes; tensors begin at multiples of 16
// bytes. The first call for a shape compiles; so does one while other threads have what was compiled.
std::int64_t cudnn_forward_workspace_bytes(const AttentionShape& shape);
void cudnn_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv, void* output,
                   float* log_sum_exp);
std::int64_t cudnn_backward_workspace_bytes(const AttentionShape& shape);
void cudnn_backward(const ComputeContext& context, const AttentionShape& shape,
                    const AttentionBackward& arguments);

}  // namespace tessera::kernels::cuda
