// Keeps objects that are expensive to make and serve one thread at a time: handles of libraries, compiled
// graphs.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera::kernels::cuda {

// The calling thread's Cache. When a thread ends, its Cache goes to the next thread that asks for one. So
// worlds whose ranks are threads can be made again and again. Caches are never destroyed, because at the end
// of the process the driver may already be gone.
template <class Cache>
Cache& kept() {
  struct Shelf {
    std::mutex mutex;
    std::vector<std::unique_ptr<Cache>> caches;  // those that no thread has
  };
  static Shelf& shelf = *new Shelf;
  struct Lease {
    std::unique_ptr<Cache> cache;

    Lease() {
      const std::lock_guard lock(shelf.mutex);
      if (shelf.caches.empty()) {
        cache = std::make_unique<Cache>();
      } else {
        cache = std::move(shelf.caches.back());
        shelf.caches.pop_back();
      }
    }
    ~Lease() {
      const std::lock_guard lock(shelf.mutex);
      shelf.caches.push_back(std::move(cache));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
  };
  thread_local Lease lease;
  return *lease.cache;
}

}  // namespace tessera::kernels::cuda
