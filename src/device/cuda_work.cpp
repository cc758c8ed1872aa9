#include "src/device/cuda_work.h"

#include <algorithm>
#include <map>
#include <utility>

#include "src/device/wait.h"

namespace tessera::device {
namespace {

using Point = std::shared_ptr<std::remove_pointer_t<cudaEvent_t>>;

bool is_reached(const Point& point) {
  const cudaError_t result = cudaEventQuery(point.get());
  ignore_cuda(result);
  return result != cudaErrorNotReady;
}

}  // namespace

std::shared_ptr<CudaWork> CudaWork::of(int ordinal) {
  static auto* const mutex =
      new std::mutex;  // never destroyed: memory may be given back at the process's end
  static auto* const all = new std::map<int, std::weak_ptr<CudaWork>>;
  const std::lock_guard lock(*mutex);
  std::weak_ptr<CudaWork>& known = (*all)[ordinal];
  std::shared_ptr<CudaWork> work = known.lock();
  if (!work) known = work = std::make_shared<CudaWork>(ordinal);
  return work;
}

void CudaWork::add(cudaStream_t stream, std::chrono::nanoseconds deadline) {
  Point end = make_cuda_event(cudaEventDisableTiming);
  const std::lock_guard lock(mutex_);
  deadline_ = std::max(deadline_, deadline);
  streams_.push_back({stream, std::move(end)});
  ++count_;
}

void CudaWork::remove(cudaStream_t stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(streams_, stream, &Stream::stream);
  if (found == streams_.end()) return;
  const cudaError_t result = cudaEventRecord(found->end.get(), stream);
  ignore_cuda(result);
  if (result == cudaSuccess && !is_reached(found->end)) ended_.push_back(std::move(found->end));
  streams_.erase(found);
  --count_;
}

std::chrono::nanoseconds CudaWork::deadline() const {
  const std::lock_guard lock(mutex_);
  return deadline_;
}

std::vector<CudaWork::Point> CudaWork::points() {
  std::erase_if(ended_, is_reached);
  std::vector<Point> all = ended_;
  for (const Stream& one : streams_) {
    const cudaError_t result = cudaEventRecord(one.end.get(), one.stream);
    ignore_cuda(result);
    if (result == cudaSuccess) all.push_back(one.end);
  }
  return all;
}

bool CudaWork::wait() noexcept try {
  make_current(ordinal_);
  std::vector<Point> left;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(overdue_, is_reached);
    if (!overdue_.empty()) return false;
    left = points();
  }
  const Pauses pauses(std::chrono::microseconds(50));
  Patience patience(deadline());
  for (;;) {
    std::erase_if(left, is_reached);
    if (left.empty()) return true;
    if (patience.over()) break;
    pauses.pause();
  }
  const std::lock_guard lock(mutex_);
  overdue_.insert(overdue_.end(), left.begin(), left.end());
  return false;
} catch (const std::exception&) {  // the driver gives nothing more: not known to be done
  return false;
}

}  // namespace tessera::device
