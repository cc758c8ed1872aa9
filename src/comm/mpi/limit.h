// A limit for MPI's own collectives, which cannot be called off. Internal.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace tessera::comm {

// While it lives, the process may wait in MPI: it ends, saying that `what` took longer than `deadline`, if
// this is still alive by then.
class MpiLimit {
 public:
  MpiLimit(const char* what, std::chrono::milliseconds deadline);
  ~MpiLimit();
  MpiLimit(const MpiLimit&) = delete;
  MpiLimit& operator=(const MpiLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread watch_;
};

}  // namespace tessera::comm
