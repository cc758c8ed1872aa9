// Marks by a GPU's own clock, with one event of the runtime for each slot. Marks on the host's streams use
// the host's clock, from the same time zero.
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
  std::vector<std::uint8_t> of_host_;  // [slot] whether it was marked on a host stream; bytes, because
                                       // several threads write them
  std::vector<CudaEvent> events_;      // [slot]
  CudaEvent zero_, again_;             // both used by begin()
  double zero_us_ = 0;  // when the stream reached zero_, by the host's clock; negative, because begin()
                        // returned later
};

}  // namespace tessera::device
