// The hardware queues of a GPU. Streams that share one wait for each other: a stream that waits holds up
// whatever stands behind it in the queue, even what it waits for. The driver has 8 queues unless the variable
// CUDA_DEVICE_MAX_CONNECTIONS says otherwise, which it reads when the process makes its context.
#pragma once

#include <string>

namespace tessera::device {

// Sets CUDA_DEVICE_MAX_CONNECTIONS to 32, the most, unless the environment has a value. Call it before the
// process's first CUDA call. The first call of this function also finds out which GPUs had a context already:
// for these the variable came too late. Later calls do nothing.
void ask_for_queues();

struct HardwareQueues {
  int count = 8;
  // Why there are so many, beginning with the variable's name; empty if they are the most there can be.
  std::string why;
};
// What this process has on a GPU.
HardwareQueues hardware_queues(int ordinal);

// What to tell the user where `streams` streams of the process share the queues; empty where each has its
// own.
std::string shared_queues(int ordinal, int streams);

}  // namespace tessera::device
