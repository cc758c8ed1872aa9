// Ranks that control connections bring together, as threads of one process.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "tests/comm/contract.h"
#include "tests/comm/control/ends.h"

namespace tessera::contract {

using MakeWorld = std::function<Communicator(const ControlOptions&)>;

// What run_local() does, for ranks that a launcher would start as processes.
inline void run_in_threads(const MakeWorld& make, int world, const RunOptions& options,
                           const std::function<void(Communicator)>& rank_main,
                           std::vector<std::string>* messages) {
  const int port = free_port();
  std::vector<std::string> texts(static_cast<std::size_t>(world));
  std::vector<std::exception_ptr> causes(texts.size());
  std::vector<std::thread> threads;
  std::vector<char> consequence(texts.size(), 0);
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      const auto own = static_cast<std::size_t>(rank);
      const auto end = [&](const std::exception& error) {
        causes[own] = std::current_exception();
        texts[own] = error.what();
      };
      try {
        Communicator ranks = make({.rank = rank, .world = world, .port = port, .deadline = options.deadline});
        try {
          rank_main(ranks);
        } catch (const std::exception& error) {
          ranks.fail(error.what());
          throw;
        }
      } catch (const CommunicationError& error) {
        consequence[own] = 1;
        end(error);
      } catch (const std::exception& error) {
        end(error);
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (messages != nullptr) *messages = texts;
  for (const char wanted : {0, 1})
    for (std::size_t rank = 0; rank < causes.size(); ++rank)
      if (causes[rank] && consequence[rank] == wanted) std::rethrow_exception(causes[rank]);
}

}  // namespace tessera::contract
