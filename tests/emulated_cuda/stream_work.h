// What an emulated stream has to do, in order, by a thread of its own. Streams wait for each other through
// marks and the hardware's queues alone, and are of different speed, so that a wait that is missing shows in
// what is computed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "tests/emulated_cuda/capture.h"
#include "tests/emulated_cuda/hardware_queue.h"

namespace tessera::emulated_cuda {

// A point in a stream's order. Reached once.
class Mark {
 public:
  void reach() {
    time_ = std::chrono::steady_clock::now();
    reached_.store(true);
    reached_.notify_all();
  }
  void wait() const { reached_.wait(false); }
  bool reached() const { return reached_.load(); }
  std::chrono::steady_clock::time_point time() const { return time_; }  // of being reached

 private:
  std::chrono::steady_clock::time_point time_;
  std::atomic<bool> reached_{false};
};

// Its thread keeps it alive as long as there is something to do, as a GPU does.
class StreamWork {
 public:
  // Of streams in turn: at once, or with a pause whenever it starts to work, be it that it had nothing to do
  // or waited for another. EMULATED_CUDA_PACE, a number, draws other speeds; 0: none pauses.
  // `queue`: one of its own, which is none of the GPU's.
  static std::shared_ptr<StreamWork> start(int ordinal, bool ordered_with_legacy,
                                           std::shared_ptr<HardwareQueue> queue = nullptr);

  int ordinal() const { return ordinal_; }
  bool ordered_with_legacy() const { return ordered_with_legacy_; }
  void give(std::function<void()> operation);
  // As give(), of what waits for others than streams: it stays at the head of the hardware's queue until it
  // is done.
  void give_wait(std::function<void()> operation);
  std::shared_ptr<Mark> mark();
  void wait_for(std::shared_ptr<const Mark> mark);
  // What is given from now on is not done before release().
  void hold();
  void release();
  bool idle() const;
  // Its part in a capture; of no capture, it does what it is given. Of the thread that gives it work.
  const CapturedPlace& captured() const { return captured_; }
  void join(CapturedPlace place) { captured_ = std::move(place); }
  // Nothing will be given any more but marks, and waits of which nothing comes behind: a destroyed stream's
  // thread may be ending when one that orders itself behind all streams looks for them.
  void close();

 private:
  StreamWork(int ordinal, bool ordered_with_legacy, std::chrono::microseconds pause,
             std::shared_ptr<HardwareQueue> queue)
      : ordinal_(ordinal),
        ordered_with_legacy_(ordered_with_legacy),
        pause_(pause),
        queue_(std::move(queue)) {}
  struct Task {
    std::function<void()> run;
    std::uint64_t place;  // in queue_
    bool stays;           // there until it is done
  };
  // Whether it will be done: not if the thread has ended.
  bool enqueue(std::function<void()> task, bool stays = false);
  void run();

  const int ordinal_;
  const bool ordered_with_legacy_;
  const std::chrono::microseconds pause_;
  const std::shared_ptr<HardwareQueue> queue_;
  std::atomic<bool> held_{false};
  mutable std::mutex mutex_;  // guards the next
  std::condition_variable given_;
  std::deque<Task> tasks_;  // the first is being done
  bool closed_ = false, ended_ = false;
  bool starts_ = true;  // of its thread
  CapturedPlace captured_;
};

}  // namespace tessera::emulated_cuda
