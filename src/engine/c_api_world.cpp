// tessera/c_api.h over tessera::Communicator: ranks, worlds, and what they measure together.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "src/engine/c_api_handles.h"
#include "src/engine/c_api_support.h"
#include "tessera/c_api.h"
#include "tessera/communicator.h"
#include "tessera/launch.h"

namespace tessera::c_api {
namespace {

enum class Operation : std::uint8_t { sum, max };

// NaN wins, whichever rank has it.
void all_reduce_max(Communicator& ranks, std::span<double> values) {
  constexpr std::size_t kPiece = 4096;  // so that what is gathered stays small
  std::vector<double> gathered(std::min(kPiece, values.size()) * static_cast<std::size_t>(ranks.world()));
  do {
    const std::span<double> piece = values.first(std::min(kPiece, values.size()));
    ranks.all_gather(piece.data(), gathered.data(), static_cast<std::int64_t>(piece.size_bytes()),
                     {.operation = "all_reduce (max)"});
    for (std::size_t k = 0; k < piece.size() * static_cast<std::size_t>(ranks.world()); ++k) {
      double& largest = piece[k % piece.size()];
      const bool first = k < piece.size();  // rank 0's: all begin with the same, zeros of either sign too
      if (first || std::isnan(gathered[k]) || gathered[k] > largest) largest = gathered[k];
    }
    values = values.subspan(piece.size());
  } while (!values.empty());
}

static_assert(TESSERA_MAX == static_cast<int>(Operation::max));

// The worlds that this thread made and that still are, or was given.
std::vector<tessera_world*>& worlds_here() {
  thread_local std::vector<tessera_world*> worlds;
  return worlds;
}

// What all ranks of a run share: that a step was skipped is nobody's failure, but the run's result.
class SkippedRun {
 public:
  void run_rank(Communicator communicator, const std::function<tessera_status(tessera_world*)>& rank_main) {
    last_error() = {};
    tessera_world world(std::move(communicator), false);
    const tessera_status status = rank_main(&world);
    if (status == TESSERA_SKIPPED) {
      const std::lock_guard lock(mutex_);
      message_ = last_error().status == status ? last_error().message : "a rank returned TESSERA_SKIPPED";
      return;
    }
    check_callback(status, fmt::format("rank {}", world.communicator.rank()));
  }

  // Behind the run.
  void check() const {
    if (message_) throw CallbackError(TESSERA_SKIPPED, *message_);
  }

 private:
  std::mutex mutex_;
  std::optional<std::string> message_;
};

}  // namespace
}  // namespace tessera::c_api

tessera_world::tessera_world(tessera::Communicator of, bool by_call)
    : communicator(std::move(of)), created(by_call) {
  tessera::c_api::worlds_here().push_back(this);
}
tessera_world::~tessera_world() { std::erase(tessera::c_api::worlds_here(), this); }

using namespace tessera;
using namespace tessera::c_api;

tessera_status tessera_run_ranks(int32_t ranks, int64_t deadline_ms, tessera_rank_main rank_main,
                                 void* user) {
  return guarded([&] {
    given(rank_main, "rank_main");
    const auto run = std::make_shared<SkippedRun>();  // a rank that is left behind still has it
    run_local(ranks, {.deadline = checked_deadline(deadline_ms)},
              [rank_main, user, run](Communicator communicator) {
                run->run_rank(std::move(communicator),
                              [&](tessera_world* world) { return rank_main(world, user); });
              });
    run->check();
  });
}

tessera_status tessera_launch(int argc, char** argv, int32_t threads, tessera_launch_main rank_main) {
  const tessera_status status = guarded([&] {
    given(rank_main, "rank_main");
    const auto run = std::make_shared<SkippedRun>();
    launch({.threads = threads}, [rank_main, argc, argv, run](Communicator communicator) {
      run->run_rank(std::move(communicator),
                    [&](tessera_world* world) { return rank_main(world, argc, argv); });
    });
    run->check();
  });
  if (status != TESSERA_OK) std::fprintf(stderr, "%s\n", tessera_last_error());
  return status;
}

void tessera_must(tessera_status status, const char* call, const char* file, int line) {
  if (status == TESSERA_OK) return;
  const bool known = last_error().status == status && !last_error().message.empty();
  const std::string message = fmt::format("{}:{}: {}: {}", file, line, call,
                                          known ? last_error().message : fmt::format("status {}", status));
  std::fprintf(stderr, "%s\n", message.c_str());
  const std::vector<tessera_world*> told = worlds_here();
  for (tessera_world* world : told) world->communicator.fail(message);
  std::fflush(nullptr);
  // Other processes hear of it before their launcher ends them.
  if (!told.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::_Exit(EXIT_FAILURE);  // no destructors: other threads are in the middle of their work
}

tessera_status tessera_world_create_mpi(int64_t deadline_ms, tessera_world** world) {
  return guarded([&] {
    tessera_world*& out = given(world, "world");
    out = new tessera_world(make_mpi_world({.deadline = checked_deadline(deadline_ms)}), true);
  });
}

tessera_status tessera_world_create_from_variables(int64_t deadline_ms, tessera_world** world) {
  return guarded([&] {
    tessera_world*& out = given(world, "world");
    out = new tessera_world(make_world_of_variables(checked_deadline(deadline_ms)), true);
  });
}

tessera_status tessera_world_create_nccl(tessera_world* host, int64_t deadline_ms, tessera_world** world) {
  return guarded([&] {
    tessera_world*& out = given(world, "world");
    out = new tessera_world(
        make_nccl_world(given(host, "host").communicator, {.deadline = checked_deadline(deadline_ms)}), true);
  });
}

tessera_status tessera_world_destroy(tessera_world* world) {
  return guarded([&] {
    if (world != nullptr && !world->created)
      throw UsageError(
          "the world that rank_main is given ends with it: leave it to tessera_run_ranks, and destroy those "
          "that a tessera_world_create_ function made");
    delete world;
  });
}

tessera_status tessera_world_fail(tessera_world* world, const char* message) {
  return guarded([&] { given(world, "world").communicator.fail(&given(message, "message")); });
}

tessera_status tessera_world_rank(const tessera_world* world, int32_t* rank) {
  return guarded([&] { given(rank, "rank") = given(world, "world").communicator.rank(); });
}

tessera_status tessera_world_ranks(const tessera_world* world, int32_t* ranks) {
  return guarded([&] { given(ranks, "ranks") = given(world, "world").communicator.world(); });
}

tessera_status tessera_world_barrier(tessera_world* world) {
  return guarded([&] { given(world, "world").communicator.barrier(); });
}

tessera_status tessera_world_all_reduce(tessera_world* world, int32_t operation, double* values,
                                        int64_t numel) {
  return guarded([&] {
    Communicator& ranks = given(world, "world").communicator;
    const std::span<double> all = span_of(values, numel, "values");
    if (checked<Operation>(operation, 2, "operation") == Operation::sum)
      ranks.all_reduce(all.data(), numel);
    else
      all_reduce_max(ranks, all);
  });
}
