// The range of memory that the processes of one host share: a file without a name, which goes with the last
// process that has it mapped.
#pragma once

#include <cstdint>
#include <memory>

#include "src/comm/staged/descriptor.h"

namespace tessera::comm {

class SharedRange {
 public:
  // A new one, all zero; EnvironmentError where there is no memory for it.
  explicit SharedRange(std::int64_t bytes);
  // Another process's. EnvironmentError where this process may not open it.
  SharedRange(const SharedDescriptor& descriptor, std::int64_t bytes);
  ~SharedRange();
  SharedRange(const SharedRange&) = delete;
  SharedRange& operator=(const SharedRange&) = delete;

  void* base() const { return base_; }
  // What other processes open, before close().
  SharedDescriptor descriptor() const { return SharedDescriptor::of(file_); }
  // It stays mapped.
  void close() noexcept;

 private:
  void map();

  int file_ = -1;
  const std::int64_t bytes_;
  void* base_ = nullptr;
};

}  // namespace tessera::comm
