// Gives communicators back without their peers: by abort, which is this rank's alone, where NCCL's destroy
// waits for the others. Nothing that any rank still needs of them may be in flight, unless the world failed.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "src/comm/nccl/library.h"

namespace tessera::comm {

struct NcclHandle {
  ncclComm_t communicator = nullptr;       // not null where it is to be ended
  std::shared_ptr<ncclComm_t> split = {};  // what a split of it writes, which may be in progress
};

// All of them in one group: the kernels of each are told to end before NCCL waits for any, which may take all
// that the GPU does. On a thread of its own, for nothing bounds how long that takes.
class NcclEnd {
 public:
  NcclEnd(std::vector<NcclHandle> handles, int ordinal);
  // Whether NCCL is done with them, by then.
  bool wait_until(std::chrono::steady_clock::time_point limit) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::comm
