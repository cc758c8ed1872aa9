#include "src/device/cuda_marks.h"

#include "src/device/activity.h"

namespace tessera::device {

CudaMarks::CudaMarks(std::size_t slots, const CudaStreamSettings& settings)
    : settings_(settings), clock_(slots), of_host_(slots), events_(slots) {
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  try {
    take();
  } catch (...) {
    give_back();
    throw;
  }
}

CudaMarks::~CudaMarks() { give_back(); }

void CudaMarks::take() {
  check_cuda(cudaEventCreateWithFlags(&zero_, cudaEventDefault), "cudaEventCreateWithFlags");
  for (cudaEvent_t& event : events_)
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
}

void CudaMarks::give_back() noexcept {
  if (zero_ != nullptr) ignore_cuda(cudaEventDestroy(zero_));
  for (cudaEvent_t event : events_)
    if (event != nullptr) ignore_cuda(cudaEventDestroy(event));
}

void CudaMarks::begin(Stream& stream) {
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  stream.synchronize();
  const Clock::time_point before = Clock::now();
  check_cuda(cudaEventRecord(zero_, static_cast<cudaStream_t>(stream.native())), "cudaEventRecord");
  stream.synchronize();
  const auto took = Clock::now() - before;
  zero_us_ = -std::chrono::duration<double, std::micro>(took).count() / 2;  // it was reached in between
  clock_.begin(stream);
}

void CudaMarks::mark(std::size_t slot, Stream& stream) {
  of_host_[slot] = stream.native() == nullptr;
  if (of_host_[slot]) return clock_.mark(slot, stream);
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  check_cuda(cudaEventRecord(events_[slot], static_cast<cudaStream_t>(stream.native())), "cudaEventRecord");
}

double CudaMarks::us(std::size_t slot) const {
  if (of_host_[slot]) return clock_.us(slot);
  const Activity activity(&describe_gpu, &settings_);
  float since_zero_ms = 0;
  check_cuda(cudaEventElapsedTime(&since_zero_ms, zero_, events_[slot]), "cudaEventElapsedTime");
  return zero_us_ + 1e3 * static_cast<double>(since_zero_ms);
}

}  // namespace tessera::device
