// Runs a function on every rank of a world of processes that tests/comm/launch.sh started: every process runs
// the same tests, and each learns how all ranks ended.
#pragma once

#include <cstring>
#include <stdexcept>

#include "tests/comm/contract.h"

namespace tessera::contract {

// How one rank ended; of fixed length, to be gathered.
struct Ending {
  enum class Kind : std::int32_t { well, communication, out_of_range, other } kind = Kind::well;
  std::int32_t culprit = -1;
  char message[2000] = {};
};

inline Ending ending_of(const std::function<void()>& body) {
  Ending ending;
  const auto end = [&](Ending::Kind kind, const std::exception& error) {
    ending.kind = kind;
    std::strncpy(ending.message, error.what(), sizeof ending.message - 1);
  };
  try {
    body();
  } catch (const CommunicationError& error) {
    ending.culprit = error.culprit();
    end(Ending::Kind::communication, error);
  } catch (const std::out_of_range& error) {
    end(Ending::Kind::out_of_range, error);
  } catch (const std::exception& error) {
    end(Ending::Kind::other, error);
  }
  return ending;
}

// What run_local() does, in the world that `make` makes of one of control connections. Each run has a world
// of its own, and another to tell of the endings.
inline void run_processes_as(const std::function<Communicator(const Communicator& control)>& make,
                             const RunOptions& options, const std::function<void(Communicator)>& rank_main,
                             std::vector<std::string>* messages) {
  static int worlds = 0;
  const auto next_world = [](std::chrono::milliseconds deadline) {
    ControlOptions control = control_options_from_environment();
    control.port += worlds++;  // the last one may still be listened on
    control.deadline = deadline;
    return make_control_world(control);
  };
  const Ending own = ending_of([&] {
    Communicator world = make(next_world(options.deadline));
    try {
      rank_main(world);
    } catch (const std::exception& error) {
      world.fail(error.what());
      throw;
    }
  });
  Communicator endings = next_world(std::chrono::seconds(60));
  std::vector<Ending> all(static_cast<std::size_t>(endings.world()));
  endings.all_gather(&own, all.data(), sizeof own);
  const Ending* cause = nullptr;
  if (messages != nullptr) messages->clear();
  for (const Ending& ending : all) {
    if (messages != nullptr) messages->emplace_back(ending.message);
    if (ending.kind == Ending::Kind::well) continue;
    if (cause == nullptr || cause->kind == Ending::Kind::communication) cause = &ending;
  }
  if (cause == nullptr) return;
  if (cause->kind == Ending::Kind::communication) throw CommunicationError(cause->message, cause->culprit);
  if (cause->kind == Ending::Kind::out_of_range) throw std::out_of_range(cause->message);
  throw Error(cause->message);
}

inline void run_processes(int, const RunOptions& options, const std::function<void(Communicator)>& rank_main,
                          std::vector<std::string>* messages) {
  run_processes_as([](const Communicator& control) { return control; }, options, rank_main, messages);
}

}  // namespace tessera::contract
