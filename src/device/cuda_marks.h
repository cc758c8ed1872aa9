// Marks by a GPU's own clock: an event of the runtime for each slot. What lies on the host's streams is timed
// there, by the same zero.
#pragma once

#include <cstdint>

#include "src/device/clock_marks.h"
#include "src/device/cuda_stream.h"

namespace tessera::device {

class CudaMarks final : public Marks {
 public:
  CudaMarks(std::size_t slots, const CudaStreamSettings& settings);
  ~CudaMarks() override;

  void begin(Stream& stream) override;
  void mark(std::size_t slot, Stream& stream) override;
  double us(std::size_t slot) const override;

 private:
  double since_zero_us(cudaEvent_t event) const;

  const CudaStreamSettings settings_;
  ClockMarks clock_;
  std::vector<std::uint8_t> of_host_;  // [slot] marked on a stream of the host; no bits: threads write them
  std::vector<CudaEvent> events_;      // [slot]
  CudaEvent zero_, again_;             // both for begin()
  double zero_us_ = 0;  // when the stream came to zero_, by the host's clock; before begin() returned
};

}  // namespace tessera::device
