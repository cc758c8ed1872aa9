// What emulated NCCL knows of memory: ranges that are registered with a communicator, and what is done to
// them that NCCL's users must not do.
#pragma once

#include <nccl.h>

#include <string>

namespace tessera::emulated_cuda {

// Whether memory is registered with the communicator, and this is none of it.
bool is_foreign(ncclComm_t communicator, const void* memory, std::size_t bytes);
bool has_registered(ncclComm_t communicator);
// Whether anything was.
bool forget_registered(ncclComm_t communicator);
void note_misuse(const std::string& text);
// Memory of a GPU that is given back to the runtime.
void note_freed(const void* begin);
// By a thread that loads a kernel.
bool driver_is_held(int gpu);
// Without waiting for the GPU, as cudaFree does.
cudaError_t free_at_once(void* begin);

}  // namespace tessera::emulated_cuda
