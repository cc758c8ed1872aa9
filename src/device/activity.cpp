#include "src/device/activity.h"

namespace tessera::device {
namespace {

thread_local const Activity* innermost = nullptr;

}  // namespace

Activity::Activity(Describe describe, const void* context) noexcept
    : describe_(describe), context_(context), outer_(innermost) {
  innermost = this;
}

Activity::~Activity() { innermost = outer_; }

std::string Activity::current() { return innermost == nullptr ? std::string() : innermost->text(); }

std::string Activity::text() const {
  const std::string own = describe_(context_);
  return outer_ == nullptr ? own : outer_->text() + ": " + own;
}

}  // namespace tessera::device
