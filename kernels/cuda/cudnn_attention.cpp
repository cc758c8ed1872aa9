#include "kernels/cuda/cudnn_attention.h"

#include <array>
#include <map>

#include "kernels/check.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/kept.h"
#include "src/device/cuda_check.h"

namespace tessera::kernels::cuda {
namespace {

// The GPU, and whatever else a compiled graph depends on.
using Key = std::array<std::int64_t, 8>;

// What one thread has made so far.
struct Cache {
  std::map<int, CudnnHandle> handles;  // by GPU
  std::map<Key, AttentionGraph> graphs;
};

int capability_of(int ordinal) {
  int major = 0, minor = 0;
  device::check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
                     "cudaDeviceGetAttribute");
  device::check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
                     "cudaDeviceGetAttribute");
  return major * 10 + minor;
}

// A slice's graph on this thread's GPU, to run on the context's stream.
AttentionGraph& graph_of(const ComputeContext& context, const AttentionShape& shape,
                         const AttentionSlice& slice, bool backward, std::int64_t workspace_bytes) {
  int ordinal = 0;
  device::check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  Cache& cache = kept<Cache>();
  CudnnHandle& handle = cache.handles[ordinal];
  handle.set_stream(context.stream);
  const Key key = {ordinal,        backward,      shape.sequence,
                   shape.channels, shape.heads,   shape.kv_heads_or_heads(),
                   slice.items,    slice.kv_heads};
  const auto found = cache.graphs.find(key);
  if (found != cache.graphs.end()) return found->second;
  const CudnnTarget target{.capability = capability_of(ordinal), .handle = &handle};
  return cache.graphs.emplace(key, AttentionGraph(shape, slice, backward, target, workspace_bytes))
      .first->second;
}

}  // namespace

bool cudnn_takes_forward(const AttentionShape& shape) { return cudnn_forward_fits(shape); }
bool cudnn_takes_backward(const AttentionShape& shape) { return cudnn_backward_fits(shape); }

std::int64_t cudnn_forward_workspace_bytes(const AttentionShape&) { return kSpareBytes; }
std::int64_t cudnn_backward_workspace_bytes(const AttentionShape& shape) {
  return cudnn_slice_bytes(shape, backward_slice(shape));
}

void cudnn_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv, void* output,
                   float* log_sum_exp) {
  AttentionGraph& graph = graph_of(context, shape, whole(shape), false, kSpareBytes);
  const CudnnOffsets at = cudnn_offsets(shape, 0, 0);
  graph.set(kQuery, element(qkv, shape.type, at.query));
  graph.set(kKey, element(qkv, shape.type, at.key));
  graph.set(kValue, element(qkv, shape.type, at.value));
  graph.set(kOutput, output);
  graph.set(kStatistics, log_sum_exp);
  graph.run(context.workspace.data);
}

void cudnn_backward(const ComputeContext& context, const AttentionShape& shape, const AttentionBackward& a) {
  const AttentionSlice slice = backward_slice(shape);
  AttentionGraph& graph = graph_of(context, shape, slice, true, cudnn_slice_bytes(shape, slice));
  for (std::int64_t item = 0; item < shape.batch; item += slice.items)
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads_or_heads(); kv_head += slice.kv_heads) {
      const CudnnOffsets at = cudnn_offsets(shape, item, kv_head);
      graph.set(kQuery, element(a.qkv, shape.type, at.query));
      graph.set(kKey, element(a.qkv, shape.type, at.key));
      graph.set(kValue, element(a.qkv, shape.type, at.value));
      graph.set(kOutput, element(a.output, shape.type, at.output));
      graph.set(kStatistics, a.log_sum_exp + at.statistics);
      graph.set(kOutputGradient, element(a.output_gradient, shape.type, at.output));
      graph.set(kQueryGradient, element(a.qkv_gradient, shape.type, at.query));
      graph.set(kKeyGradient, element(a.qkv_gradient, shape.type, at.key));
      graph.set(kValueGradient, element(a.qkv_gradient, shape.type, at.value));
      graph.run(context.workspace.data);
    }
}

}  // namespace tessera::kernels::cuda
