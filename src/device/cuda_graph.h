// What streams of a GPU captured, as a CUDA graph.
#pragma once

#include <span>
#include <vector>

#include "src/device/cuda_stream.h"

namespace tessera::device {

// Captures what the calling thread gives some streams of a GPU, from its making to end() or its destruction.
class CudaCapture {
 public:
  // The streams are idle. EnvironmentError where the driver refuses; nothing is captured then.
  CudaCapture(std::span<Stream* const> streams, const CudaStreamSettings& settings);
  // Drops what was captured, unless end() was called.
  ~CudaCapture();
  CudaCapture(const CudaCapture&) = delete;
  CudaCapture& operator=(const CudaCapture&) = delete;

  // See Device::end_capture().
  std::unique_ptr<CapturedWork> end();

 private:
  using Graph = CudaHandle<cudaGraph_t, &cudaGraphDestroy>;
  Graph stop();
  void drop() noexcept;

  const CudaStreamSettings settings_;
  std::vector<CudaStream*> streams_;  // the first one is the origin
  bool going_on_ = false;
};

}  // namespace tessera::device
