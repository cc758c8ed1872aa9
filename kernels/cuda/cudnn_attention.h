// Attention by cuDNN, if the build has it: forward and a deterministic backward, in bf16, for the shapes that
// cudnn_layout.h names. no_cudnn.cpp takes its place in other builds. A failure does not fall back to another
// kernel: UnsupportedError if cuDNN has no plan for this GPU, EnvironmentError if the library or a call
// fails.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/cudnn_layout.h"

namespace tessera::kernels::cuda {

// Whether cuDNN computes this shape. Depends on the build and the shape only; false in a build without cuDNN.
bool cudnn_takes_forward(const AttentionShape& shape);
bool cudnn_takes_backward(const AttentionShape& shape);

// Like attention_forward() and attention_backward(), for shapes that cuDNN takes. Tensors begin at multiples
// of 16 bytes. A thread's first call for a shape compiles a graph, unless open_cudnn() has. UsageError if the
// workspace is smaller than the graph's plan needs.
void cudnn_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv, void* output,
                   float* log_sum_exp);
void cudnn_backward(const ComputeContext& context, const AttentionShape& shape,
                    const AttentionBackward& arguments);
// In slices of another size than backward_slice() has, which divides the work.
void cudnn_backward(const ComputeContext& context, const AttentionShape& shape, const AttentionSlice& slice,
                    const AttentionBackward& arguments);

// The workspace of these. On `target.gpu` what cuDNN's plan takes there, to the byte: each GPU is asked once
// a process, which compiles a graph, takes and gives back memory there, and makes that GPU the thread's
// current one. Where the target names no
// GPU, the most that a plan may take: cudnn_layout.h counts it.
std::int64_t cudnn_forward_workspace_bytes(const AttentionShape& shape, const Target& target);
std::int64_t cudnn_backward_workspace_bytes(const AttentionShape& shape, const Target& target);

// Makes the calling thread's handle, and its graphs of all shapes whose workspace was asked for on this GPU,
// which is the thread's current one. They stay. Makes nothing where none was asked for.
void open_cudnn(int ordinal);

}  // namespace tessera::kernels::cuda
