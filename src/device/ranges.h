// Named ranges of a thread's time, for profilers that are attached to the process (NVTX, which needs no GPU).
// Where none is they cost a comparison.
#pragma once

#include <string>

namespace tessera::device {

// Whether a profiler takes ranges: decided when first asked, for good.
bool profiled();
// Names a range before it is used; kept for good. Null where not profiled.
const void* range_name(const std::string& text);

// The calling thread's time while it lives, by range_name(); nothing for null. Ranges of a thread nest.
class Range {
 public:
  explicit Range(const void* name) : name_(name) {
    if (name_ != nullptr) push(name_);
  }
  ~Range() {
    if (name_ != nullptr) pop();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  static void push(const void* name);
  static void pop();

  const void* name_;
};

}  // namespace tessera::device
