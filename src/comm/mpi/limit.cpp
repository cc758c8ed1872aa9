#include "src/comm/mpi/limit.h"

#include <cstdio>
#include <cstdlib>

namespace tessera::comm {

MpiLimit::MpiLimit(const char* what, std::chrono::milliseconds deadline)
    : watch_([this, what, deadline] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, deadline, [this] { return over_; })) return;
        std::fflush(stdout);
        std::fprintf(
            stderr,
            "tessera: %s: MPI did not return within %.1f s: a process did not come, or stopped on the "
            "way; this one ends\n",
            what, std::chrono::duration<double>(deadline).count());
        std::_Exit(EXIT_FAILURE);
      }) {}

MpiLimit::~MpiLimit() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  watch_.join();
}

}  // namespace tessera::comm
