// Worlds of threads: making them, running a function on every rank, and ending them when a rank fails.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "src/comm/local/backend.h"
#include "src/device/thread.h"
#include "src/device/wait.h"
#include "tessera/id_vector.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

// Shared by the rank threads and the caller; a thread that is left behind keeps it alive.
struct Run {
  Run(int ranks, const LocalOptions& options, std::function<void(Communicator)> main)
      : world(std::make_shared<comm::LocalWorld>(ranks, options)),
        communicators(comm::communicators_of(world, comm::Ends::as_told)),
        rank_main(std::move(main)),
        causes(ranks),
        messages(ranks) {}

  void run_rank(int rank);
  void end_rank(int rank, std::exception_ptr cause, const std::string& message);
  bool wait_for_all();
  std::exception_ptr first_cause();

  const std::shared_ptr<comm::LocalWorld> world;
  IdVector<Communicator> communicators;
  const std::function<void(Communicator)> rank_main;
  std::atomic<int> ended{0};
  device::Signal changed;
  std::mutex mutex;  // guards the rest
  int first_to_throw = -1;
  IdVector<std::exception_ptr> causes;
  IdVector<std::string> messages;
};

void Run::run_rank(int rank) {
  try {
    rank_main(std::move(communicators[rank]));
    end_rank(rank, nullptr, "");
  } catch (const std::exception& error) {
    end_rank(rank, std::current_exception(), error.what());
  } catch (...) {
    end_rank(rank, std::current_exception(), "an exception that is not a std::exception");
  }
}

void Run::end_rank(int rank, std::exception_ptr cause, const std::string& message) {
  if (cause) world->fail(rank, rank, message);
  world->end(rank);
  {
    const std::lock_guard lock(mutex);
    if (cause && first_to_throw < 0) first_to_throw = rank;
    causes[rank] = std::move(cause);
    messages[rank] = message;
  }
  ended.fetch_add(1);
  changed.notify();
}

// False where some are still running when the deadline has passed since the first failure. Whoever did not
// answer for as long before it gets only the time in which one that waits hears of the failure.
bool Run::wait_for_all() {
  constexpr std::chrono::milliseconds kToHear{500};
  const std::chrono::nanoseconds deadline = world->options().deadline;
  const auto waits_for_late_only = [&] {
    for (int rank = 0; rank < world->ranks(); ++rank)
      if (!world->ended(rank) && !world->late(rank)) return false;
    return true;
  };
  const auto is_over = [&] {
    const auto failure = world->first_failure();
    if (!failure) return false;
    const std::chrono::nanoseconds patience =
        waits_for_late_only() ? std::min<std::chrono::nanoseconds>(deadline, kToHear) : deadline;
    return device::Clock::now() >= failure->time + patience;
  };
  const auto all_ended = [&] { return ended.load() == world->ranks(); };
  const device::WaitPolicy blocks = device::WaitPolicy::choose(Waiting::block, 0);
  while (!changed.wait(blocks, std::chrono::milliseconds(20), all_ended))
    if (is_over()) return all_ended();
  return true;
}

std::exception_ptr Run::first_cause() {
  const auto failure = world->first_failure();
  const std::lock_guard lock(mutex);
  if (failure && causes[failure->reporter]) return causes[failure->reporter];
  if (first_to_throw >= 0) return causes[first_to_throw];
  // A rank said that it failed, and none threw.
  if (failure)
    return std::make_exception_ptr(CommunicationError(
        fmt::format("rank {} failed: {}", failure->reporter, failure->message), failure->culprit));
  return nullptr;
}

}  // namespace

std::vector<Communicator> make_local_world(int world, const LocalOptions& options) {
  if (world < 1) throw UsageError(fmt::format("a world of {} ranks: use at least 1", world));
  return comm::communicators_of(std::make_shared<comm::LocalWorld>(world, options),
                                comm::Ends::with_communicators);
}

void run_local(int world, const LocalOptions& options, const std::function<void(Communicator)>& rank_main,
               std::vector<std::string>* messages) {
  if (world < 1) throw UsageError(fmt::format("a world of {} ranks: use at least 1", world));
  if (!rank_main) throw UsageError("run_local: rank_main is empty; give the function that every rank runs");
  const auto run = std::make_shared<Run>(world, options, rank_main);
  const std::vector<int> cores = options.pin ? allowed_cores() : std::vector<int>{};
  const auto cores_of = [&](int rank) { return share_of_cores(cores, rank, world); };
  std::vector<device::Thread> threads;
  for (int rank = 1; rank < world; ++rank) try {
      threads.emplace_back(fmt::format("rank {}", rank), cores_of(rank),
                           [run, rank] { run->run_rank(rank); });
    } catch (const std::exception& error) {  // of the system, or of the cores that it was to keep to
      const EnvironmentError cause(fmt::format("cannot start the thread of rank {}: {}", rank, error.what()));
      for (int missing = rank; missing < world; ++missing)
        run->end_rank(missing, std::make_exception_ptr(cause), cause.what());
      break;
    }
  bind_thread(cores_of(0), "");
  run->run_rank(0);
  bind_thread(cores, "");

  const bool all_ended = run->wait_for_all();
  for (device::Thread& thread : threads) all_ended ? thread.join() : thread.detach();
  if (messages != nullptr) {
    const std::lock_guard lock(run->mutex);
    *messages = run->messages;
  }
  if (const std::exception_ptr cause = run->first_cause()) std::rethrow_exception(cause);
}

}  // namespace tessera
