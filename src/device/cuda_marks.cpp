#include "src/device/cuda_marks.h"

#include "src/device/activity.h"

namespace tessera::device {

CudaMarks::CudaMarks(std::size_t slots, const CudaStreamSettings& settings)
    : settings_(settings), clock_(slots), of_host_(slots) {
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  zero_ = make_cuda_event(cudaEventDefault);
  while (events_.size() < slots) events_.push_back(make_cuda_event(cudaEventDefault));
}

CudaMarks::~CudaMarks() { ignore_cuda(cudaSetDevice(settings_.ordinal)); }

void CudaMarks::begin(Stream& stream) {
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  stream.synchronize();
  const Clock::time_point before = Clock::now();
  check_cuda(cudaEventRecord(zero_.get(), static_cast<cudaStream_t>(stream.native())), "cudaEventRecord");
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
  check_cuda(cudaEventRecord(events_[slot].get(), static_cast<cudaStream_t>(stream.native())),
             "cudaEventRecord");
}

double CudaMarks::us(std::size_t slot) const {
  if (of_host_[slot]) return clock_.us(slot);
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  float since_zero_ms = 0;
  check_cuda(cudaEventElapsedTime(&since_zero_ms, zero_.get(), events_[slot].get()), "cudaEventElapsedTime");
  return zero_us_ + 1e3 * static_cast<double>(since_zero_ms);
}

}  // namespace tessera::device
