// What ranks that are processes of one host take for a collective, beside ranks that are threads, in one run:
//   mpirun -n 2 process_exchange [--staged] [--rounds N]
// In-place all_gather and reduce_scatter of fp32 and bf16, between arenas as the engine's. Each figure is the
// median over a round's calls of the slowest rank, in the best of the rounds.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "tessera/communicator.h"
#include "tessera/device.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLeast = 1 << 10, kMost = std::int64_t{256} << 20;
constexpr double kRoundSeconds = 0.02;

enum class Kind { gather, reduce_fp32, reduce_bf16 };
constexpr Kind kKinds[] = {Kind::gather, Kind::reduce_fp32, Kind::reduce_bf16};
constexpr const char* kNames[] = {"all_gather", "reduce_scatter fp32", "reduce_scatter bf16"};

// Medians by kind and bytes of the full buffer; one for each round.
using Medians = std::map<std::pair<Kind, std::int64_t>, std::vector<double>>;

// Two buffers, so that a reduction reads what its predecessor did not just write.
class Bench {
 public:
  explicit Bench(Communicator world)
      : world_(std::move(world)),
        device_(make_cpu_device({.rank = world_.rank()})),
        arena_(device_->make_arena(2 * kMost, world_.wants_shared_arena())) {
    std::memset(arena_.base(), 0, static_cast<std::size_t>(arena_.bytes()));
    registration_ = world_.register_arena(arena_);
  }

  const ArenaRegistration& registration() const { return registration_; }

  void round(Medians& medians) {
    for (const Kind kind : kKinds)
      for (std::int64_t bytes = kLeast; bytes <= kMost; bytes *= 4) {
        double once = seconds_of(kind, bytes);
        world_.broadcast(&once, sizeof once, 0);  // all make the same number of calls
        std::vector<double> seconds(static_cast<std::size_t>(std::clamp(kRoundSeconds / once, 3.0, 2000.0)));
        for (double& second : seconds) second = seconds_of(kind, bytes);
        medians[{kind, bytes}].push_back(median_of_slowest(seconds));
      }
  }

 private:
  double seconds_of(Kind kind, std::int64_t bytes) {
    const std::int64_t shard_bytes = bytes / world_.world();
    std::byte* const full = arena_.base();
    world_.barrier();
    const Clock::time_point begin = Clock::now();
    if (kind == Kind::gather) {
      world_.all_gather(full + world_.rank() * shard_bytes, full, shard_bytes);
    } else {
      const DType wire = kind == Kind::reduce_fp32 ? DType::fp32 : DType::bf16;
      world_.reduce_scatter({.full = full,
                             .wire = wire,
                             .shard = reinterpret_cast<float*>(full + kMost),
                             .shard_numel = shard_bytes / bytes_of(wire)});
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  double median_of_slowest(std::vector<double> seconds) {
    std::vector<double> all(seconds.size() * static_cast<std::size_t>(world_.world()));
    world_.all_gather(seconds.data(), all.data(), static_cast<std::int64_t>(seconds.size() * sizeof(double)));
    for (std::size_t i = 0; i < all.size(); ++i)
      seconds[i % seconds.size()] = std::max(seconds[i % seconds.size()], all[i]);
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                     seconds.end());
    return seconds[seconds.size() / 2];
  }

  Communicator world_;
  std::unique_ptr<Device> device_;
  Arena arena_;
  ArenaRegistration registration_;
};

double best_of(const std::vector<double>& medians) {
  return *std::min_element(medians.begin(), medians.end());
}

void print(Medians& processes, Medians& threads) {
  fmt::print("{:<20}{:>10}{:>14}{:>14}{:>8}\n", "µs", "KiB", "processes", "threads", "ratio");
  for (const auto& [key, medians] : processes) {
    const double ours = best_of(medians), theirs = best_of(threads[key]);
    fmt::print("{:<20}{:>10}{:>14.1f}{:>14.1f}{:>8.2f}\n", kNames[static_cast<int>(key.first)],
               key.second >> 10, ours * 1e6, theirs * 1e6, ours / theirs);
  }
}

int run(int argc, char** argv) {
  bool staged = false;
  int rounds = 5;
  CLI::App app("Collectives of processes beside those of threads.", "process_exchange");
  app.add_flag("--staged", staged, "processes do not read each other's arenas");
  app.add_option("--rounds", rounds, "of each, in turn")->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  Communicator world = make_mpi_world({.direct = !staged});
  Bench bench(world);
  if (world.rank() == 0)
    fmt::print("{} processes, {}\n", world.world(),
               bench.registration().direct ? "direct" : "staged: " + bench.registration().reason);
  Medians processes, threads;
  for (int round = 0; round < rounds; ++round) {
    bench.round(processes);
    world.barrier();
    if (world.rank() == 0)
      run_local(world.world(), {}, [&](Communicator ranks) {
        Medians own;
        Bench(ranks).round(ranks.rank() == 0 ? threads : own);
      });
    world.barrier();
  }
  if (world.rank() == 0) print(processes, threads);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
