#include "kernels/cuda/cudnn_attention.h"

#include <array>
#include <map>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "kernels/check.h"
#include "kernels/cuda/cudnn_graph.h"
#include "src/device/activity.h"
#include "src/device/cuda_check.h"
#include "src/device/cudnn_library.h"

namespace tessera::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string activity = device::Activity::current();
  throw EnvironmentError((activity.empty() ? "" : activity + ": ") + "attention by cuDNN: " + call +
                         " failed: " + fe::detail::get_error_string(status));
}

struct Destroy {
  void operator()(cudnnHandle_t handle) const { fe::detail::destroy_handle(handle); }
};
using OwnedHandle = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, Destroy>;

// The GPU, and whatever else a compiled graph depends on.
using Key = std::array<std::int64_t, 8>;

struct Compiled {
  std::unique_ptr<fe::graph::Graph> graph;
  std::unordered_map<std::int64_t, void*> tensors;  // by CudnnTensor: kept, so that a call allocates none
};

// What one calling thread has made so far.
struct Cache {
  std::map<int, OwnedHandle> handles;  // by GPU
  std::map<Key, Compiled> graphs;
};

Cache& this_threads_cache() {
  thread_local Cache cache;
  return cache;
}

cudnnHandle_t handle_of(Cache& cache, int ordinal) {
  OwnedHandle& owned = cache.handles[ordinal];
  if (!owned) {
    cudnnHandle_t handle = nullptr;
    check(fe::detail::create_handle(&handle), "cudnnCreate");
    owned.reset(handle);
  }
  return owned.get();
}

int capability_of(int ordinal) {
  int major = 0, minor = 0;
  device::check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
                     "cudaDeviceGetAttribute");
  device::check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
                     "cudaDeviceGetAttribute");
  return major * 10 + minor;
}

// A slice's graph on this thread's GPU, ready to run on the context's stream.
class Runner {
 public:
  Runner(const ComputeContext& context, const AttentionShape& shape, const AttentionSlice& slice,
         bool backward, std::int64_t workspace_bytes)
      : workspace_(context.workspace.data) {
    static const bool loaded = [] { return (fe::cudnn_dlhandle = device::cudnn_library()) != nullptr; }();
    static_cast<void>(loaded);
    int ordinal = 0;
    device::check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
    Cache& cache = this_threads_cache();
    handle_ = handle_of(cache, ordinal);
    check(fe::detail::set_stream(handle_, static_cast<cudaStream_t>(context.stream)), "cudnnSetStream");
    const Key key = {ordinal,        backward,      shape.sequence,
                     shape.channels, shape.heads,   shape.kv_heads_or_heads(),
                     slice.items,    slice.kv_heads};
    auto found = cache.graphs.find(key);
    if (found == cache.graphs.end()) {
      Compiled compiled{describe_attention(shape, slice, backward, capability_of(ordinal)), {}};
      compile_attention(*compiled.graph, handle_, shape, workspace_bytes);
      found = cache.graphs.emplace(key, std::move(compiled)).first;
    }
    compiled_ = &found->second;
  }

  void set(CudnnTensor name, const void* tensor) { compiled_->tensors[name] = const_cast<void*>(tensor); }
  void run() const {
    fe::error_t error = compiled_->graph->execute(handle_, compiled_->tensors, workspace_);
    if (error.is_bad()) throw EnvironmentError("attention by cuDNN: execute failed: " + error.get_message());
  }

 private:
  void* workspace_;
  cudnnHandle_t handle_ = nullptr;
  Compiled* compiled_ = nullptr;
};

}  // namespace

bool cudnn_takes_forward(const AttentionShape& shape) { return cudnn_forward_fits(shape); }
bool cudnn_takes_backward(const AttentionShape& shape) { return cudnn_backward_fits(shape); }

std::int64_t cudnn_forward_workspace_bytes(const AttentionShape&) { return kSpareBytes; }
std::int64_t cudnn_backward_workspace_bytes(const AttentionShape& shape) {
  return cudnn_slice_bytes(shape, backward_slice(shape));
}

void cudnn_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv, void* output,
                   float* log_sum_exp) {
  Runner runner(context, shape, whole(shape), false, kSpareBytes);
  const CudnnOffsets at = cudnn_offsets(shape, 0, 0);
  runner.set(kQuery, element(qkv, shape.type, at.query));
  runner.set(kKey, element(qkv, shape.type, at.key));
  runner.set(kValue, element(qkv, shape.type, at.value));
  runner.set(kOutput, output);
  runner.set(kStatistics, log_sum_exp);
  runner.run();
}

void cudnn_backward(const ComputeContext& context, const AttentionShape& shape, const AttentionBackward& a) {
  const AttentionSlice slice = backward_slice(shape);
  Runner runner(context, shape, slice, true, cudnn_slice_bytes(shape, slice));
  for (std::int64_t item = 0; item < shape.batch; item += slice.items)
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads_or_heads(); kv_head += slice.kv_heads) {
      const CudnnOffsets at = cudnn_offsets(shape, item, kv_head);
      runner.set(kQuery, element(a.qkv, shape.type, at.query));
      runner.set(kKey, element(a.qkv, shape.type, at.key));
      runner.set(kValue, element(a.qkv, shape.type, at.value));
      runner.set(kOutput, element(a.output, shape.type, at.output));
      runner.set(kStatistics, a.log_sum_exp + at.statistics);
      runner.set(kOutputGradient, element(a.output_gradient, shape.type, at.output));
      runner.set(kQueryGradient, element(a.qkv_gradient, shape.type, at.query));
      runner.set(kKeyGradient, element(a.qkv_gradient, shape.type, at.key));
      runner.set(kValueGradient, element(a.qkv_gradient, shape.type, at.value));
      runner.run();
    }
}

}  // namespace tessera::kernels::cuda
