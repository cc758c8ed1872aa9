// What is dear to make and serves one thread at a time: handles of libraries, compiled graphs.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera::kernels::cuda {

// The calling thread's Cache. One that ends leaves it to the next that asks: a world whose ranks are threads
// can be made again and again. They are never destroyed: when the process ends, the driver may be gone
// before.
template <class Cache>
Cache& kept() {
  struct Shelf {
    std::mutex mutex;
    std::vector<std::unique_ptr<Cache>> caches;  // that no thread has
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
