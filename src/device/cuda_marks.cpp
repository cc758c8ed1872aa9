#include "src/device/cuda_marks.h"

#include <algorithm>

#include "src/device/activity.h"

namespace tessera::device {
namespace {

constexpr int kMostAnswers = 32;
constexpr double kCloseEnoughUs = 50;
constexpr double kPatienceUs =
    200;  // asked without a rest: on a busy host a thread that rests comes back late

}  // namespace

CudaMarks::CudaMarks(std::size_t slots, const CudaStreamSettings& settings)
    : settings_(settings), clock_(slots), of_host_(slots) {
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  zero_ = make_cuda_event(cudaEventDefault);
  again_ = make_cuda_event(cudaEventDefault);
  while (events_.size() < slots) events_.push_back(make_cuda_event(cudaEventDefault));
}

CudaMarks::~CudaMarks() { ignore_cuda(cudaSetDevice(settings_.ordinal)); }

void CudaMarks::begin(Stream& stream) {
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  stream.synchronize();
  const Clock::time_point start = Clock::now();
  const auto since_start_us = [start](Clock::time_point at) {
    return std::chrono::duration<double, std::micro>(at - start).count();
  };
  // When the stream came to zero_, µs after `start`: each answer of the idle stream bounds it from both
  // sides. The first is close enough unless this thread, or the one that answers, was put aside meanwhile.
  double earliest = 0, latest = 0;
  for (int answer = 0; answer < kMostAnswers; ++answer) {
    const cudaEvent_t event = answer == 0 ? zero_.get() : again_.get();
    const double before = since_start_us(Clock::now());
    check_cuda(cudaEventRecord(event, static_cast<cudaStream_t>(stream.native())), "cudaEventRecord");
    const Event answered = stream.record();
    while (!stream.done(answered) && since_start_us(Clock::now()) < before + kPatienceUs) {
    }
    stream.synchronize(answered);
    const double after = since_start_us(Clock::now());
    const double passed = answer == 0 ? 0.0 : since_zero_us(event);
    earliest = answer == 0 ? before : std::max(earliest, before - passed);
    latest = answer == 0 ? after : std::min(latest, after - passed);
    if (latest - earliest <= kCloseEnoughUs) break;
  }
  clock_.begin(stream);
  zero_us_ = (earliest + latest) / 2 - since_start_us(clock_.zero());
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
  return zero_us_ + since_zero_us(events_[slot].get());
}

double CudaMarks::since_zero_us(cudaEvent_t event) const {
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, zero_.get(), event), "cudaEventElapsedTime");
  return 1e3 * static_cast<double>(ms);
}

}  // namespace tessera::device
