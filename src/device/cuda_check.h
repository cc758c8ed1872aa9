// How results of the CUDA runtime are looked at: every call goes through one of these.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::device {

// EnvironmentError that names the call, the error, and what the thread is busy with (activity.h): with which
// GPU for which rank, at least.
void check_cuda(cudaError_t result, const char* call);

// Before the process's first call of CUDA: its streams get hardware queues of their own where the environment
// does not say otherwise. The driver has 8 for them by default, and streams that share one wait for each
// other.
void ask_for_connections();

// For destructors, whose errors nobody could act on. One that does not stick is cleared, so that it is not
// taken for a later call's.
void ignore_cuda(cudaError_t result) noexcept;

// Makes a GPU the calling thread's, for calls of the driver, too. The process's first one asks for
// connections. It stays: going back to one that the thread has not used yet would make a context there, of
// hundreds of megabytes.
void make_current(int ordinal);

}  // namespace tessera::device
