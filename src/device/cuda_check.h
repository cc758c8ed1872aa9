// Checks the results of the CUDA runtime. Every call goes through one of these.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::device {

// Throws EnvironmentError that names the call, the error, and what the thread is doing (activity.h), which is
// at least the GPU and the rank.
void check_cuda(cudaError_t result, const char* call);

// For destructors, where nobody can act on an error. An error that is not sticky is cleared, so that a later
// call does not report it.
void ignore_cuda(cudaError_t result) noexcept;

// Makes a GPU current on the calling thread, also for calls of the driver. The process's first call also
// calls ask_for_queues() (cuda_queues.h). The GPU stays current: to switch back to a GPU that the thread has
// not used would make a context there, of hundreds of megabytes.
void make_current(int ordinal);

}  // namespace tessera::device
