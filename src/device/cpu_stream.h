// The CPU's streams: one runs on its caller, the other owns a thread. Both keep order, progress and the first
// failure in a StreamState. If a stream's thread cannot be ended, it keeps its StreamState alive.
#pragma once

#include <limits>

#include "src/device/thread.h"
#include "src/device/wait.h"
#include "tessera/device.h"

namespace tessera::device {

// The settings that all streams of one device share.
struct StreamSettings {
  int rank = 0;
  WaitPolicy policy;
  std::chrono::nanoseconds deadline{};
  FailureFlag failure;
  // If set, a word that a device can read. It follows StreamState::completed, modulo 2^32. After the stream's
  // end it is past every ticket that anybody waits for.
  std::shared_ptr<std::atomic<std::uint32_t>> word = {};
};

// Operations are numbered from 1; `completed` and `failed_at` are such numbers.
struct StreamState {
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  StreamState(const StreamOptions& options, const StreamSettings& shared_settings);

  // Blocks until operation `ticket` is done. Throws the device's failure, or EnvironmentError when the
  // deadline has passed.
  void wait_for(std::uint64_t ticket);
  bool reached(std::uint64_t ticket) const noexcept {
    return completed.load() >= ticket || failed_at.load() <= ticket;
  }
  // Called while handling the exception that failed operation `ticket`. Sets the device's flag if it is not
  // yet set.
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
  Signal progress;  // notified when `completed` or `failed_at` changes
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
  // Throws EnvironmentError if the thread cannot be started or kept on its cores.
  ThreadStream(const StreamOptions& options, const StreamSettings& settings);
  ~ThreadStream() override;

  const std::string& name() const override { return queue_->state.options.name; }
  void run(Task task) override { submit({.task = task, .event = {}}); }
  void wait(Event event) override;
  Event record() override { return {this, queue_->state.submitted.load()}; }
  void synchronize(Event event) override { queue_->state.wait_for(event.ticket); }
  bool done(Event event) const noexcept override { return queue_->state.reached(event.ticket); }
  // Null if there is none.
  const std::atomic<std::uint32_t>* word() const noexcept { return queue_->state.settings.word.get(); }

 private:
  // A task or, if the task is empty, a wait for the event.
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
    Signal work;  // notified when `submitted` or `stop` changes
    std::atomic<bool> stop{false};
    std::atomic<bool> ended{false};
    Signal end;
  };

  void submit(const Operation& operation);

  std::shared_ptr<Queue> queue_;
  Thread thread_;
};

// Whether the calling thread belongs to a ThreadStream.
bool serves_stream() noexcept;

// Makes a stream of either kind, as `options` say. UsageError for options out of range.
std::unique_ptr<Stream> make_cpu_stream(const StreamOptions& options, const StreamSettings& settings);

}  // namespace tessera::device
