// The limit of whatever updates in place: three streams of fp32, read and written as fast as this machine
// allows. They hold random values, as states do.
#pragma once

#include <omp.h>

#include <cstdint>

#include "benchmarks/random_data.h"
#include "benchmarks/updated_bytes.h"
#include "hwy/highway.h"
#include "tessera/device.h"

namespace tessera {

constexpr std::int64_t kReadAndWritten = 24;  // bytes of an element of each of the three

// [0, count) in equal parts, one a thread, as the kernel splits it.
template <class Function>
void in_parts(int threads, std::int64_t count, const Function& function) {
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    function(count * part / parts / 16 * 16, count * (part + 1) / parts / 16 * 16);
  }
}

inline void read_and_write(float* a, float* b, float* c, std::int64_t begin, std::int64_t end) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, -1.0f);  // however often: no value becomes zero
  for (std::int64_t i = begin; i < end; i += static_cast<std::int64_t>(hn::Lanes(d)))
    for (float* stream : {a, b, c}) hn::Store(hn::Mul(hn::Load(d, stream + i), factor), d, stream + i);
}

// Streams in one arena, apart by what keeps them off the same cache sets.
class Streams {
 public:
  Streams(std::int64_t numel, int count) : stride_(numel * 4 + 9472), arena_({.bytes = stride_ * count}) {
    fill_random(reinterpret_cast<float*>(arena_.base()), stride_ * count / 4, -1, 1);
  }
  template <class T = float>
  T* operator[](int stream) const {
    return reinterpret_cast<T*>(arena_.base() + stream * stride_);
  }

 private:
  std::int64_t stride_;
  Arena arena_;
};

// numel elements of the first three streams, by so many threads.
inline void read_and_write(int threads, const Streams& streams, std::int64_t numel) {
  in_parts(threads, numel, [&](std::int64_t begin, std::int64_t end) {
    read_and_write(streams[0], streams[1], streams[2], begin, end);
  });
}

}  // namespace tessera
