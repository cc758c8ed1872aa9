// A CUDA runtime of the tests' own, linked in place of NVIDIA's: the host's side of streams without a GPU. A
// stream's operations end at once unless the test holds the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace tessera::fake_cuda {

struct State {
  int current_device = 0;
  int streams = 0, events = 0;  // that exist
  int most_events = 1'000'000;  // more are refused
  int waits = 0;                // of a stream for an event
  int host_waits = 0;           // of a stream for a word of the host's memory
  unsigned last_flags = 0;      // of the stream made last
  int last_priority = 0;
  cudaError_t fault = cudaSuccess;  // what asking for an event, or recording one, returns
  float now_ms = 0;                 // the GPU's clock, unless there is a `clock`
  std::function<float()> clock;     // ms
  // Called before an event that tells times is given to its stream, and once the stream has come to it.
  std::function<void()> before_record, after_record;
};
State& state();

void hold(void* stream);
void release(void* stream);

}  // namespace tessera::fake_cuda
