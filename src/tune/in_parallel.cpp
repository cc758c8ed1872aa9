#include "src/tune/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace tessera {

std::size_t in_parallel(std::size_t count, const std::function<bool(std::size_t)>& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next = 0, end = count;
  const auto run = [&] {
    // Taken in ascending order: whatever comes before a call that ends it all has been taken, too.
    for (std::size_t k = next++; k < end; k = next++) {
      bool goes_on = false;
      try {
        goes_on = work(k);
      } catch (...) {
        errors[k] = std::current_exception();
      }
      if (goes_on) continue;
      std::size_t least = end;
      while (k + 1 < least && !end.compare_exchange_weak(least, k + 1)) {
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1u);
    try {
      while (helpers.size() + 1 < std::min(count, cores)) helpers.emplace_back(run);
    } catch (const std::system_error&) {
      // The system gives no more threads: those there are do it all.
    }
    run();
  }
  const std::size_t made = end;
  if (made > 0 && errors[made - 1]) std::rethrow_exception(errors[made - 1]);
  return made;
}

}  // namespace tessera
