#include "src/device/activity.h"

#include "src/device/simulator.h"

namespace tessera::device {

Activity::Activity(Describe describe, const void* context) noexcept
    : describe_(describe), context_(context), outer_(thread_state().innermost) {
  thread_state().innermost = this;
}

Activity::~Activity() { thread_state().innermost = outer_; }

std::string Activity::current() {
  const Activity* const innermost = thread_state().innermost;
  return innermost == nullptr ? std::string() : innermost->text();
}

std::string Activity::text() const {
  const std::string own = describe_(context_);
  return outer_ == nullptr ? own : outer_->text() + ": " + own;
}

}  // namespace tessera::device
