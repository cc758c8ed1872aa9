// A slice of attention as a graph of cuDNN. Loads libcudnn; needs a GPU only to run. cuDNN's own
// header, which takes long to compile, stays in the source.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/cudnn_layout.h"

namespace tessera::kernels::cuda {

// What a graph calls its tensors.
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

// cuDNN on the GPU that was current when it was made; for one thread.
class CudnnHandle {
 public:
  // EnvironmentError naming cuDNN's reason, or that the library cannot be loaded.
  CudnnHandle();
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;

  // What runs from now on runs on `stream`, a cudaStream_t of the handle's GPU.
  void set_stream(void* stream);

 private:
  friend class AttentionGraph;
  void* handle_ = nullptr;  // cudnnHandle_t
};

// Whom a graph is compiled for: the GPU of a handle that outlives it, or one that is only described, as cuDNN
// describes it, where a plan is wanted and nothing can run.
struct CudnnTarget {
  int capability = 0;  // ten times the major number and the minor one
  const CudnnHandle* handle = nullptr;
  std::string description = {};  // JSON, read where `handle` is null
};

class AttentionGraph {
 public:
  // UnsupportedError naming the reason where no kernel does it deterministically within `workspace_bytes`.
  AttentionGraph(const AttentionShape& shape, const AttentionSlice& slice, bool backward,
                 const CudnnTarget& target, std::int64_t workspace_bytes);
  ~AttentionGraph();
  AttentionGraph(AttentionGraph&&) noexcept;
  AttentionGraph& operator=(AttentionGraph&&) noexcept;

  // Of the plan that was chosen.
  std::int64_t workspace_bytes() const;

  // Every tensor of the direction has to be set before the first run, and stays set.
  void set(CudnnTensor name, const void* tensor);
  // On the handle's stream. EnvironmentError naming cuDNN's reason, which there is without a handle, too.
  void run(void* workspace);

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace tessera::kernels::cuda
