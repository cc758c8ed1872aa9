// Named ranges of a thread's time, for a profiler that is attached to the process (NVTX, which needs no GPU).
// Without a profiler a range costs one comparison.
#pragma once

#include <string>

namespace tessera::device {

// Whether a profiler takes ranges. Decided at the first call and kept.
bool profiled();
// Makes the name of a range, before its use. It is never freed. Null without a profiler.
const void* range_name(const std::string& text);

// Marks the calling thread's time while the object lives. `name` is from range_name(); null marks nothing.
// Ranges of a thread nest.
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
