// Splits a range over the threads of a call. The split decides which thread computes what, never the order of
// sums.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace tessera::kernels {

// Below this many elements an elementwise kernel stays on the calling thread: opening a team costs
// microseconds.
constexpr std::int64_t kElementwiseGrain = 16384;

// Calls function(begin, end, thread) for contiguous parts of [0, count), cut at multiples of `grain`, at most
// one part per thread. With one thread, or at most one grain, it is a plain call and no team is opened.
template <class Function>
void parallel_ranges(int threads, std::int64_t count, std::int64_t grain, Function&& function) {
  if (count <= 0) return;
  const std::int64_t grains = (count + grain - 1) / grain;
  const int team = static_cast<int>(std::min<std::int64_t>(threads, grains));
  if (team <= 1) {
    function(std::int64_t{0}, count, 0);
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const std::int64_t thread = omp_get_thread_num();
    const std::int64_t members = omp_get_num_threads();
    const std::int64_t begin = grains * thread / members * grain;
    const std::int64_t end = std::min(count, grains * (thread + 1) / members * grain);
    if (begin < end) function(begin, end, static_cast<int>(thread));
  }
}

// Calls function(begin, end) for chunks of [0, count). Every thread starts with a part of its own, which is
// the same at every call, so that the data may still be in its caches and in memory near it. A thread that is
// done takes chunks from the others' parts. So a thread that shares its core with another lane's thread does
// less. A chunk is a quarter of a part in multiples of `grain`: at least one `grain`, and at most `most`
// elements. With one thread it is a plain call.
template <class Function>
void parallel_chunks(int threads, std::int64_t count, std::int64_t grain, std::int64_t most,
                     Function&& function) {
  if (count <= 0) return;
  const std::int64_t quarter = count / (std::int64_t{4} * std::max(threads, 1)) / grain * grain;
  const std::int64_t chunk = std::clamp(quarter, grain, most);
  const std::int64_t chunks = (count + chunk - 1) / chunk;
  const int team = static_cast<int>(std::min<std::int64_t>(threads, chunks));
  if (team <= 1) return function(std::int64_t{0}, count);
  struct alignas(64) Part {  // one cache line each, so that threads that count do not slow each other down
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };
  constexpr int kMostParts = 64;
  Part part[kMostParts];
  const int parts = std::min(team, kMostParts);
  for (int p = 0; p < parts; ++p) {
    part[p].next.store(chunks * p / parts, std::memory_order_relaxed);
    part[p].end = chunks * (p + 1) / parts;
  }
#pragma omp parallel num_threads(team)
  for (int turn = 0; turn < parts; ++turn) {
    Part& from = part[(omp_get_thread_num() + turn) % parts];
    for (std::int64_t c; (c = from.next.fetch_add(1, std::memory_order_relaxed)) < from.end;)
      function(c * chunk, std::min((c + 1) * chunk, count));
  }
}

}  // namespace tessera::kernels
