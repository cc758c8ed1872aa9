// Words of host memory by which a GPU's streams and host threads tell each other their progress. Enqueuing
// does not block, and host threads call no driver. A driver call could wait for another thread's call that
// loads a kernel, and so for the GPU, which may be waiting for this very thread.
//
// The driver's own calls for this, cuStreamWaitValue32 and cuStreamWriteValue32, are missing or do nothing
// with some drivers and modes of a GPU. So they are tried once, by a write that has to arrive and a wait that
// has to hold. Where they fail, a host function (cudaLaunchHostFunc) writes the word, which takes tens of
// microseconds and a thread of the driver's, and streams cannot wait for words: the caller does that.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "src/device/cuda_check.h"

namespace tessera::device {

// The pinned words for the streams of one GPU. A word's memory is given back only when this object and all
// words beside it are gone. To do that at the end of its stream would mean to wait for the GPU, which may
// still read the word.
class HostWords {
 public:
  using Word = std::atomic<std::uint32_t>;
  // The driver's calls. Null: host functions take their place.
  struct Calls {
    void* wait = nullptr;   // cuStreamWaitValue32
    void* write = nullptr;  // cuStreamWriteValue32
    std::string missing;    // why there are none; empty where there are
  };

  // The words of this GPU, which all that use it share. Whoever comes first tries the calls. An answer that
  // has not come within `deadline`, and two seconds at most, does not come.
  static std::shared_ptr<HostWords> of(int ordinal, std::chrono::nanoseconds deadline);
  // Without trying them.
  HostWords(int ordinal, Calls calls) : ordinal_(ordinal), calls_(std::move(calls)) {}
  // As the driver names them.
  static Calls find_calls();

  // A new word with the value 0, on a cache line of its own.
  std::shared_ptr<Word> make();

  // Whether enqueue_wait() may be called, and why not. What is done where it may not, in words.
  bool streams_wait() const { return calls_.missing.empty(); }
  const std::string& why_not() const { return calls_.missing; }
  static constexpr const char* kInTheirPlace =
      "the calling thread waits for threads of the host in place of streams, and host functions tell them of "
      "streams";

  // Later work on the stream begins when the word is `value` or past it. Counting wraps from 2^32 − 1 to 0,
  // and "past" means ahead by less than 2^31.
  void enqueue_wait(cudaStream_t stream, const Word& word, std::uint32_t value) const;
  // The word becomes `value` once the stream has done all earlier work. A thread that sees the value also
  // sees what that work wrote. The word lives until then.
  void enqueue_write(cudaStream_t stream, Word& word, std::uint32_t value) const;

 private:
  static constexpr std::size_t kWords = 64;
  struct alignas(64) Line {
    Word word{0};
  };

  // Why the calls do not do what they should; empty where they do.
  std::string fault(std::chrono::nanoseconds deadline);

  const int ordinal_;
  Calls calls_;
  std::mutex mutex_;  // guards the next two
  std::shared_ptr<Line[]> lines_;
  std::size_t made_ = 0;  // words of lines_ in use
};

// Whether `word` is `value` or past it, as above.
constexpr bool is_past(std::uint32_t word, std::uint32_t value) {
  return static_cast<std::int32_t>(word - value) >= 0;
}

}  // namespace tessera::device
