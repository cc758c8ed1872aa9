// Marks by the host's clock. A task that marks runs when its stream reaches it, so the clock is read then.
#pragma once

#include <vector>

#include "src/device/wait.h"

namespace tessera::device {

class ClockMarks final : public Marks {
 public:
  explicit ClockMarks(std::size_t slots) : us_(slots) {}

  void begin(Stream&) override { zero_ = Clock::now(); }
  void mark(std::size_t slot, Stream&) override {
    us_[slot] = std::chrono::duration<double, std::micro>(Clock::now() - zero_).count();
  }
  double us(std::size_t slot) const override { return us_[slot]; }
  Clock::time_point zero() const { return zero_; }

 private:
  std::vector<double> us_;
  Clock::time_point zero_;
};

}  // namespace tessera::device
