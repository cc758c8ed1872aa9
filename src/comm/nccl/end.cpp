#include "src/comm/nccl/end.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "src/device/cuda_check.h"

namespace tessera::comm {
namespace {

bool in_progress(const NcclHandle& handle) {
  ncclResult_t state = ncclSuccess;
  nccl().ncclCommGetAsyncError(handle.communicator, &state);
  return state == ncclInProgress;
}

void abort_together(std::vector<NcclHandle> handles, int ordinal) {
  // Even in a group NCCL waits at once for what is in progress on a communicator, and that may wait for
  // kernels of another: by then these are told to end.
  std::stable_partition(handles.begin(), handles.end(),
                        [](const NcclHandle& handle) { return !in_progress(handle); });
  nccl().ncclGroupStart();
  for (const NcclHandle& handle : handles) {
    nccl().ncclCommAbort(handle.communicator);
    // That ended the split, too: it writes no more.
    if (handle.split && *handle.split != nullptr) nccl().ncclCommAbort(*handle.split);
  }
  // Only now that the kernels are told to end: it may wait for a thread that waits for them.
  device::ignore_cuda(cudaSetDevice(ordinal));
  nccl().ncclGroupEnd();
}

}  // namespace

struct NcclEnd::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

NcclEnd::NcclEnd(std::vector<NcclHandle> handles, int ordinal) : state_(std::make_shared<State>()) {
  const auto run = [state = state_, handles = std::move(handles), ordinal] {
    abort_together(handles, ordinal);
    const std::lock_guard lock(state->mutex);
    state->done = true;
    state->changed.notify_all();
  };
  try {
    std::thread(run).detach();
  } catch (const std::system_error&) {  // no thread to be had
    run();
  }
}

bool NcclEnd::wait_until(std::chrono::steady_clock::time_point limit) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, limit, [&] { return state_->done; });
}

}  // namespace tessera::comm
