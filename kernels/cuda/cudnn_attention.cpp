#include "kernels/cuda/cudnn_attention.h"

#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/kept.h"
#include "src/device/cuda_check.h"

namespace tessera::kernels::cuda {
namespace {

// One call's work: a slice, and its direction.
struct Work {
  AttentionShape shape;
  AttentionSlice slice;
  bool backward = false;

  // The most that its plan may take.
  std::int64_t most_bytes() const { return backward ? cudnn_slice_bytes(shape, slice) : kSpareBytes; }
};

Work forward_of(const AttentionShape& shape) { return {.shape = shape, .slice = whole(shape)}; }
Work backward_of(const AttentionShape& shape, const AttentionSlice& slice) {
  return {.shape = shape, .slice = slice, .backward = true};
}

// The GPU, and whatever else a compiled graph depends on.
using Key = std::array<std::int64_t, 8>;

Key key_of(int ordinal, const Work& work) {
  const AttentionShape& shape = work.shape;
  return {ordinal,          work.backward,      shape.sequence,
          shape.channels,   shape.heads,        shape.kv_heads_or_heads(),
          work.slice.items, work.slice.kv_heads};
}

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

// A graph on a GPU, which is the thread's current one and the handle's.
AttentionGraph compile(int ordinal, const CudnnHandle& handle, const Work& work) {
  const CudnnTarget target{.capability = capability_of(ordinal), .handle = &handle};
  return {work.shape, work.slice, work.backward, target, work.most_bytes()};
}

// This thread's graph on a GPU, which is the thread's current one.
AttentionGraph& graph_of(int ordinal, const Work& work) {
  Cache& cache = kept<Cache>();
  const Key key = key_of(ordinal, work);
  const auto found = cache.graphs.find(key);
  if (found != cache.graphs.end()) return found->second;
  return cache.graphs.emplace(key, compile(ordinal, cache.handles[ordinal], work)).first->second;
}

// The graph that runs on the context's stream, in its workspace.
AttentionGraph& graph_to_run(const ComputeContext& context, const Work& work) {
  int ordinal = 0;
  device::check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  AttentionGraph& graph = graph_of(ordinal, work);
  check_workspace(context, graph.workspace_bytes(),
                  work.backward ? "attention_backward" : "attention_forward");
  kept<Cache>().handles[ordinal].set_stream(context.stream);
  return graph;
}

// Those of all threads: a plan of a step asks for the same shape again and again, on several threads.
struct Answer {
  Work work;
  std::int64_t workspace_bytes = 0;
};
struct Answers {
  std::mutex mutex;
  std::map<Key, Answer> by_key;

  static Answers& all() {
    static Answers& answers = *new Answers;
    return answers;
  }
};

// A plan is often made by a thread that runs nothing, so nothing of the GPU's is kept after the answer.
std::int64_t workspace_bytes(const Work& work, const Target& target) {
  if (target.gpu < 0) return work.most_bytes();
  Answers& answers = Answers::all();
  const Key key = key_of(target.gpu, work);
  const std::lock_guard lock(answers.mutex);
  const auto found = answers.by_key.find(key);
  if (found != answers.by_key.end()) return found->second.workspace_bytes;
  device::make_current(target.gpu);
  const CudnnHandle handle;
  const std::int64_t bytes = compile(target.gpu, handle, work).workspace_bytes();
  answers.by_key.emplace(key, Answer{work, bytes});
  return bytes;
}

}  // namespace

void open_cudnn(int ordinal) {
  std::vector<Work> asked;
  {
    Answers& answers = Answers::all();
    const std::lock_guard lock(answers.mutex);
    for (const auto& [key, answer] : answers.by_key)
      if (key.front() == ordinal) asked.push_back(answer.work);
  }
  for (const Work& work : asked) graph_of(ordinal, work);
}

bool cudnn_takes_forward(const AttentionShape& shape) { return cudnn_forward_fits(shape); }
bool cudnn_takes_backward(const AttentionShape& shape) { return cudnn_backward_fits(shape); }

std::int64_t cudnn_forward_workspace_bytes(const AttentionShape& shape, const Target& target) {
  return workspace_bytes(forward_of(shape), target);
}
std::int64_t cudnn_backward_workspace_bytes(const AttentionShape& shape, const Target& target) {
  return workspace_bytes(backward_of(shape, backward_slice(shape)), target);
}

void cudnn_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv, void* output,
                   float* log_sum_exp) {
  AttentionGraph& graph = graph_to_run(context, forward_of(shape));
  const CudnnOffsets at = cudnn_offsets(shape, 0, 0);
  graph.set(kQuery, element(qkv, shape.type, at.query));
  graph.set(kKey, element(qkv, shape.type, at.key));
  graph.set(kValue, element(qkv, shape.type, at.value));
  graph.set(kOutput, output);
  graph.set(kStatistics, log_sum_exp);
  graph.run(context.workspace.data);
}

void cudnn_backward(const ComputeContext& context, const AttentionShape& shape, const AttentionBackward& a) {
  cudnn_backward(context, shape, backward_slice(shape), a);
}

void cudnn_backward(const ComputeContext& context, const AttentionShape& shape, const AttentionSlice& slice,
                    const AttentionBackward& a) {
  AttentionGraph& graph = graph_to_run(context, backward_of(shape, slice));
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
