// Words of host memory by which a GPU's streams and host threads tell each other their progress. Enqueuing
// does not block, and host threads call no driver. A driver call could wait for another thread's call that
// loads a kernel, and so for the GPU, which may be waiting for this very thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "src/device/cuda_check.h"

namespace tessera::device {

// Pinned words for the streams of one GPU. A word's memory is given back only when this object and all words
// beside it are gone. To do that at the end of its stream would mean to wait for the GPU, which may still
// read the word.
class HostWords {
 public:
  using Word = std::atomic<std::uint32_t>;

  // A new word with the value 0, on a cache line of its own.
  std::shared_ptr<Word> make(int ordinal);

 private:
  static constexpr std::size_t kWords = 64;
  struct alignas(64) Line {
    Word word{0};
  };

  std::mutex mutex_;  // guards the next two
  std::shared_ptr<Line[]> lines_;
  std::size_t made_ = 0;  // words of lines_ in use
};

// Later work on the stream begins when the word is `value` or past it. Counting wraps from 2^32 − 1 to 0, and
// "past" means ahead by less than 2^31.
void enqueue_wait(cudaStream_t stream, const std::atomic<std::uint32_t>& word, std::uint32_t value);

// The word becomes `value` once the stream has done all earlier work. A thread that sees the value also sees
// what that work wrote.
void enqueue_write(cudaStream_t stream, std::atomic<std::uint32_t>& word, std::uint32_t value);

// Whether `word` is `value` or past it, as above.
constexpr bool is_past(std::uint32_t word, std::uint32_t value) {
  return static_cast<std::int32_t>(word - value) >= 0;
}

}  // namespace tessera::device
