#include "src/device/cpu_stream.h"

#include <fmt/format.h>

#include <system_error>

#include "src/device/time_text.h"
#include "tessera/error.h"

namespace tessera::device {

StreamState::StreamState(const StreamOptions& stream_options, const StreamSettings& shared_settings)
    : options(stream_options), settings(shared_settings) {}

void StreamState::wait_for(std::uint64_t ticket) {
  const FailureFlag& flag = settings.failure;
  const auto ready = [&] { return reached(ticket) || flag.failed(); };
  if (!progress.wait(settings.policy, settings.deadline, ready)) throw_late("an event", ticket);
  if (failed_at.load() <= ticket || completed.load() < ticket) flag.rethrow();
}

void StreamState::fail(std::uint64_t ticket) {
  settings.failure.set(std::current_exception());  // first: who sees failed_at asks the flag for the cause
  failed_at.store(ticket);
  progress.notify();
}

void StreamState::throw_late(const char* what, std::uint64_t ticket) const {
  throw EnvironmentError(fmt::format(
      "rank {}: stream '{}' did not reach {} (operation {}) within {}; it has done {} of {}", settings.rank,
      options.name, what, ticket, time_text(settings.deadline), completed.load(), submitted.load()));
}

// ---- on the caller ----

template <class Operation>
void CallerStream::perform(const Operation& operation) {
  const std::uint64_t ticket = state_.submitted.load() + 1;
  state_.submitted.store(ticket);
  if (state_.failed_at.load() != StreamState::kNever) return state_.complete(ticket);
  try {
    if (state_.settings.failure.failed()) state_.settings.failure.rethrow();
    operation();
  } catch (...) {
    state_.fail(ticket);
    state_.complete(ticket);
    throw;
  }
  state_.complete(ticket);
}

void CallerStream::run(Task task) {
  perform([&] { task.run(task.context, task.argument); });
}

void CallerStream::wait(Event event) {
  if (event.stream == nullptr || event.stream == this) return;
  perform([&] { event.stream->synchronize(event); });
}

// ---- on a thread ----

bool serves_stream() noexcept { return thread_state().serves_stream; }

ThreadStream::Queue::Queue(const StreamOptions& options, const StreamSettings& settings)
    : state(options, settings), ring(static_cast<std::size_t>(options.capacity)) {}

void ThreadStream::Queue::serve() {
  thread_state().serves_stream = true;
  for (std::uint64_t ticket = 1;; ++ticket) {
    work.wait(state.settings.policy, kForever,
              [&] { return state.submitted.load() >= ticket || stop.load(); });
    if (stop.load()) break;
    if (state.failed_at.load() == StreamState::kNever) {
      try {
        perform(ring[(ticket - 1) % ring.size()]);
      } catch (...) {
        state.fail(ticket);
      }
    }
    state.complete(ticket);
  }
  ended.store(true);
  end.notify();
}

void ThreadStream::Queue::perform(const Operation& operation) {
  if (state.settings.failure.failed()) state.settings.failure.rethrow();
  if (operation.task.run != nullptr)
    operation.task.run(operation.task.context, operation.task.argument);
  else
    operation.event.stream->synchronize(operation.event);
}

ThreadStream::ThreadStream(const StreamOptions& options, const StreamSettings& settings)
    : queue_(std::make_shared<Queue>(options, settings)) {
  try {
    // The thread shares the queue: should it never end, it outlives this stream without touching freed
    // memory.
    thread_ = Thread(options.name, options.cpus, [queue = queue_] { queue->serve(); });
  } catch (const std::system_error& error) {
    throw EnvironmentError(
        fmt::format("cannot start the thread of stream '{}': {}", options.name, error.what()));
  }
}

ThreadStream::~ThreadStream() {
  StreamState& state = queue_->state;
  const std::uint64_t pending = state.submitted.load() - state.completed.load();
  // What is running may wait for a peer or another stream; the flag ends such waits.
  if (pending > 0 && !state.settings.failure.failed())
    state.settings.failure.set(fmt::format("rank {}: stream '{}' was destroyed with {} operations pending",
                                           state.settings.rank, state.options.name, pending));
  queue_->stop.store(true);
  queue_->work.notify();
  if (queue_->end.wait(state.settings.policy, state.settings.deadline, [&] { return queue_->ended.load(); }))
    thread_.join();
  else
    thread_.detach();
  if (state.settings.word) state.settings.word->store(static_cast<std::uint32_t>(state.submitted.load()));
}

void ThreadStream::wait(Event event) {
  if (event.stream == nullptr || event.stream == this) return;
  submit({.task = {}, .event = event});
}

void ThreadStream::submit(const Operation& operation) {
  StreamState& state = queue_->state;
  const std::uint64_t ticket = state.submitted.load() + 1;
  const std::uint64_t capacity = queue_->ring.size();
  if (ticket > capacity && state.completed.load() < ticket - capacity) {
    const auto ready = [&] { return state.completed.load() >= ticket - capacity; };
    if (!state.progress.wait(state.settings.policy, state.settings.deadline, ready))
      state.throw_late("room for another operation", ticket);
  }
  queue_->ring[(ticket - 1) % capacity] = operation;
  state.submitted.store(ticket);
  queue_->work.notify();
}

std::unique_ptr<Stream> make_cpu_stream(const StreamOptions& options, const StreamSettings& settings) {
  if (options.capacity < 1)
    throw UsageError(
        fmt::format("stream '{}' with capacity {}: use at least 1", options.name, options.capacity));
  if (!options.on_caller) return std::make_unique<ThreadStream>(options, settings);
  if (!options.cpus.empty())
    throw UsageError(fmt::format("stream '{}' runs on its caller and has no thread for cpus", options.name));
  return std::make_unique<CallerStream>(options, settings);
}

}  // namespace tessera::device
