// The communicator from which all others of the same ranks are split. Nothing is exchanged on it, so that a
// split, in which all of them take part, meets no call in flight. Used by the rank's own thread; whoever
// calls waits.
#pragma once

#include "src/comm/nccl/end.h"

namespace tessera::comm {

class NcclParent {
 public:
  NcclParent() = default;
  NcclParent(const NcclParent&) = delete;
  NcclParent& operator=(const NcclParent&) = delete;

  bool made() const { return communicator_ != nullptr; }
  // These two begin what is done when ready() says so. Collective over the ranks, of which `rank` is this
  // one.
  void make(const ncclUniqueId& id, int ranks, int rank);
  // Of all ranks, in the order of their keys.
  void split(int key);
  // Throws EnvironmentError with NCCL's error.
  bool ready() const;
  // What the last split made, once ready: itself perhaps in progress still. The caller's to give back.
  ncclComm_t take_child();
  // The caller's to give back, with what is in progress. It can be made again.
  NcclHandle take();

 private:
  ncclComm_t communicator_ = nullptr;
  std::shared_ptr<ncclComm_t> child_;  // written by NCCL while a split is in progress
};

}  // namespace tessera::comm
