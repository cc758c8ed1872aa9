// A slice of attention as a cuDNN graph. Loads libcudnn; needs a GPU only to run. Only the source file
// includes cuDNN's own header, which takes long to compile.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/cudnn_layout.h"

namespace tessera::kernels::cuda {

// The names of a graph's tensors.
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

// A cuDNN handle for the GPU that was current when it was made. For use by one thread.
class CudnnHandle {
 public:
  // Throws EnvironmentError with cuDNN's reason, or if the library cannot be loaded.
  CudnnHandle();
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;

  // Graphs that run from now on run on `stream`, a cudaStream_t of the handle's GPU.
  void set_stream(void* stream);

 private:
  friend class AttentionGraph;
  void* handle_ = nullptr;  // cudnnHandle_t
};

// The GPU that a graph is compiled for: that of a handle, which must outlive the graph, or one that is only
// described in cuDNN's JSON. With a description a graph gets a plan but cannot run.
struct CudnnTarget {
  int capability = 0;  // compute capability, 10 * major + minor
  const CudnnHandle* handle = nullptr;
  std::string description = {};  // JSON, read where `handle` is null
};

class AttentionGraph {
 public:
  // Throws UnsupportedError with the reason if no deterministic kernel runs within `workspace_bytes`.
  AttentionGraph(const AttentionShape& shape, const AttentionSlice& slice, bool backward,
                 const CudnnTarget& target, std::int64_t workspace_bytes);
  ~AttentionGraph();
  AttentionGraph(AttentionGraph&&) noexcept;
  AttentionGraph& operator=(AttentionGraph&&) noexcept;

  // The workspace of the plan that was chosen.
  std::int64_t workspace_bytes() const;

  // Every tensor of the direction must be set before the first run, and stays set.
  void set(CudnnTensor name, const void* tensor);
  // Runs on the handle's stream. Throws EnvironmentError with cuDNN's reason, also if there is no handle.
  void run(void* workspace);

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace tessera::kernels::cuda
