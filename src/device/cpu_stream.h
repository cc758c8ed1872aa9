// The CPU's streams: one that runs on its caller, one that owns a thread. Both keep order, progress and the
// first failure in a StreamState, which a thread that cannot be ended may outlive.
#pragma once

#include <limits>
#include <thread>

#include "src/device/wait.h"
#include "tessera/device.h"

namespace tessera::device {

// What the streams of one device share.
struct StreamSettings {
  int rank = 0;
  WaitPolicy policy;
  std::chrono::nanoseconds deadline{};
  FailureFlag failure;
  // Where a stream is to tell a device, too, what it has done: follows StreamState::completed, modulo 2^32.
  // Behind the stream's end it is past all that anybody waits for.
  std::shared_ptr<std::atomic<std::uint32_t>> word = {};
};

// Operations are numbered from 1; `completed` and `failed_at` speak of those numbers.
struct StreamState {
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  StreamState(const StreamOptions& options, const StreamSettings& shared_settings);

  // Blocks until operation `ticket` is done. Throws what failed the device, or that the deadline
  // passed.
  void wait_for(std::uint64_t ticket);
  bool reached(std::uint64_t ticket) const noexcept {
    return completed.load() >= ticket || failed_at.load() <= ticket;
  }
  // The exception in flight failed operation `ticket`: sets the device's flag, where it was not set before.
  void fail(std::uint64_t ticket);
  void complete(std::uint64_t ticket) {
    completed.store(ticket);
    if (settings.word) settings.word->store(static_cast<std::uint32_t>(ticket));
    progress.notify();
  }
  [[noreturn]] void throw_late(const char* what, std::uint64_t ticket) const;

  const StreamOptions options;
  StreamSettings settings;
  std::atomic<std::uint64_t> failed_at{kNever};
  alignas(64) std::atomic<std::uint64_t> submitted{0};
  alignas(64) std::atomic<std::uint64_t> completed{0};
  Signal progress;  // of `completed` and `failed_at`
};

class CallerStream final : public Stream {
 public:
  CallerStream(const StreamOptions& options, const StreamSettings& settings) : state_(options, settings) {}

  const std::string& name() const override { return state_.options.name; }
  void run(Task task) override;
  void wait(Event event) override;
  Event record() override { return {this, state_.submitted.load()}; }
  void synchronize(Event event) override { state_.wait_for(event.ticket); }
  bool done(Event event) const noexcept override { return state_.reached(event.ticket); }

 private:
  template <class Operation>
  void perform(const Operation& operation);

  StreamState state_;
};

class ThreadStream final : public Stream {
 public:
  // EnvironmentError if the thread cannot be started or kept on its cores.
  ThreadStream(const StreamOptions& options, const StreamSettings& settings);
  ~ThreadStream() override;

  const std::string& name() const override { return queue_->state.options.name; }
  void run(Task task) override { submit({.task = task, .event = {}}); }
  void wait(Event event) override;
  Event record() override { return {this, queue_->state.submitted.load()}; }
  void synchronize(Event event) override { queue_->state.wait_for(event.ticket); }
  bool done(Event event) const noexcept override { return queue_->state.reached(event.ticket); }
  // Null where there is none.
  const std::atomic<std::uint32_t>* word() const noexcept { return queue_->state.settings.word.get(); }

 private:
  // A task, or the wait for an event where the task is empty.
  struct Operation {
    Task task;
    Event event;
  };
  struct Queue {
    Queue(const StreamOptions& options, const StreamSettings& settings);
    void serve();  // the thread's loop
    void perform(const Operation& operation);

    StreamState state;
    std::vector<Operation> ring;
    Signal work;  // of `submitted` and `stop`
    std::atomic<bool> stop{false};
    std::atomic<bool> ended{false};
    Signal end;
  };

  void submit(const Operation& operation);

  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

// Whether the calling thread is a ThreadStream's.
bool serves_stream() noexcept;

// Of either kind. UsageError for options that mean nothing.
std::unique_ptr<Stream> make_cpu_stream(const StreamOptions& options, const StreamSettings& settings);

}  // namespace tessera::device
