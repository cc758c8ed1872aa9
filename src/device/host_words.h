// Words of the host's memory by which streams of a GPU and threads of the host tell each other how far they
// are. Who enqueues is not held up, and a thread of the host calls no driver: a call could wait for another
// thread's that loads a kernel, and so for the GPU, which may be waiting for this very thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "src/device/cuda_check.h"

namespace tessera::device {

// Pinned words for the streams of one GPU. A word's memory is given back with this and all words beside it,
// so not at the end of its stream: that would wait for the GPU, which may still look.
class HostWords {
 public:
  using Word = std::atomic<std::uint32_t>;

  // One that is 0, on a cache line of its own.
  std::shared_ptr<Word> make(int ordinal);

 private:
  static constexpr std::size_t kWords = 64;
  struct alignas(64) Line {
    Word word{0};
  };

  std::mutex mutex_;  // guards the next
  std::shared_ptr<Line[]> lines_;
  std::size_t made_ = 0;  // of lines_
};

// What comes behind on the stream begins when the word is `value` or past it, counting on from 2^32 − 1 to 0;
// "past" is by less than 2^31.
void enqueue_wait(cudaStream_t stream, const std::atomic<std::uint32_t>& word, std::uint32_t value);

// The word becomes `value` once the stream has done what comes before; who sees it sees what that wrote, too.
void enqueue_write(cudaStream_t stream, std::atomic<std::uint32_t>& word, std::uint32_t value);

// Whether a word that has been `word` is at `value`, or past it as above.
constexpr bool is_past(std::uint32_t word, std::uint32_t value) {
  return static_cast<std::int32_t>(word - value) >= 0;
}

}  // namespace tessera::device
