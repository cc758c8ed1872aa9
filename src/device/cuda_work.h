// What a GPU still has to do for this process, as its streams know it. Whoever gives memory back asks here
// first. The runtime would wait for all that the GPU does, and without a deadline: a collective that hangs
// would hold up the end of the program for good.
//
// Calls of CUDA and NCCL at the end, and what bounds them:
//
//   cudaFree, cudaFreeHost, ncclMemFree  wait for the GPU: called only behind wait()
//   cudaDeviceSynchronize                never called
//   cudaStreamDestroy, cudaEventDestroy  return at once; the driver frees them once the GPU has passed them
//   cudaEventRecord, cudaEventQuery      return at once
//   ncclCommAbort, ncclGroupEnd          may wait for the GPU: on a thread that nobody joins
//                                        (src/comm/nccl/end.h), unless the system gives no thread
//   ncclCommDestroy                      waits for peers: never called
//   cublasLtDestroy, cudnnDestroy        never called: handles stay until the process ends
//                                        (kernels/cuda/kept.h)
//
// The streams of other libraries, or of the embedder, are not known here. What hangs on those still holds up
// cudaFree.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "src/device/cuda_handles.h"

namespace tessera::device {

// One GPU's. Any thread may call any member.
class CudaWork {
 public:
  // The one of this GPU, which everything that uses the GPU shares.
  static std::shared_ptr<CudaWork> of(int ordinal);
  explicit CudaWork(int ordinal) : ordinal_(ordinal) {}

  // From now on the stream's work counts. wait() takes the longest `deadline` that it was told.
  void add(cudaStream_t stream, std::chrono::nanoseconds deadline);
  // Before the stream is destroyed. What it still has to do counts on.
  void remove(cudaStream_t stream) noexcept;

  // Whether the GPU has done all that the streams were given before this call. Waits for it, within the
  // deadline. Once a wait has ended by the deadline, the next ones return false without waiting, until that
  // work is done. A GPU whose kernel failed does nothing any more: true.
  bool wait() noexcept;
  std::chrono::nanoseconds deadline() const;
  // How many streams there are.
  int streams() const { return count_.load(); }

 private:
  // A point in a stream's order; shared, because several threads may wait for it.
  using Point = std::shared_ptr<std::remove_pointer_t<cudaEvent_t>>;
  struct Stream {
    cudaStream_t stream = nullptr;
    Point end;  // where it was when it was asked last
  };

  // Where all streams are now, the ended ones included. With the lock held.
  std::vector<Point> points();

  const int ordinal_;
  std::atomic<int> count_{0};  // of streams_
  mutable std::mutex mutex_;   // guards the rest
  std::chrono::nanoseconds deadline_{};
  std::vector<Stream> streams_;
  std::vector<Point> ended_;    // the last points of streams that were removed, while not reached
  std::vector<Point> overdue_;  // for which a wait was too long, while not reached
};

}  // namespace tessera::device
