// In-place all_gather and reduce_scatter (fp32) of two ranks, by the bytes of the full buffer.
//   bench_collectives                               ranks as threads
//   mpirun -n 2 --bind-to none bench_collectives    beside them ranks as processes, and the MPI library's own
//   tessera launch -n 2 -- bench_collectives        beside them ranks as processes without MPI; behind
//                                                   TESSERA_BENCH_HOSTS=2, as if on two hosts, by messages
// The limit is the same memory traffic without any meeting of the ranks: two threads that each copy, or add,
// half of the buffer. A sample is many calls, from one barrier to the next; contenders take turns.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>

#include "benchmarks/pairs.h"
#include "benchmarks/random_data.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "tessera/communicator.h"
#include "tessera/device.h"
#include "tessera/launch.h"
#include "tessera/machine.h"
#ifdef TESSERA_HAS_MPI
#include <mpi.h>
#endif

namespace tessera {
namespace {

constexpr std::int64_t kMost = std::int64_t{256} << 20;
constexpr std::int64_t kPastCaches = std::int64_t{16} << 20;

enum class Kind { all_gather, reduce_scatter };

// What one rank works on.
struct RankBuffers {
  std::byte* full = nullptr;  // also of the other rank
  const std::byte* peer = nullptr;
  std::int64_t half_bytes = 0;
  int rank = 0;

  std::byte* own_half() const { return full + rank * half_bytes; }
};

// The faster way for so many bytes: through the caches, or past them.
void copy_as_fast_as_possible(std::byte* to, const std::byte* from, std::int64_t bytes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<std::uint8_t> d;
  if (bytes < kPastCaches) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  auto* target = reinterpret_cast<std::uint8_t*>(to);
  const auto* source = reinterpret_cast<const std::uint8_t*>(from);
  for (std::int64_t i = 0; i < bytes; i += static_cast<std::int64_t>(hn::Lanes(d)))
    hn::Stream(hn::Load(d, source + i), d, target + i);
  hwy::FlushStream();
}

void move_without_meeting(Kind kind, const RankBuffers& buffers) {
  const std::int64_t other = (1 - buffers.rank) * buffers.half_bytes;
  if (kind == Kind::all_gather)
    return copy_as_fast_as_possible(buffers.full + other, buffers.peer + other, buffers.half_bytes);
  auto* sum = reinterpret_cast<float*>(buffers.own_half());
  const auto* add = reinterpret_cast<const float*>(buffers.peer + buffers.rank * buffers.half_bytes);
  for (std::int64_t i = 0; i < buffers.half_bytes / 4; ++i) sum[i] += add[i];
}

void call(Kind kind, Communicator& ranks, const RankBuffers& buffers) {
  if (kind == Kind::all_gather) {
    ranks.all_gather(buffers.own_half(), buffers.full, buffers.half_bytes);
  } else {
    ranks.reduce_scatter({.full = buffers.full,
                          .shard = reinterpret_cast<float*>(buffers.own_half()),
                          .shard_numel = buffers.half_bytes / 4});
  }
}

// Seconds of `calls` calls, as rank 0 sees them.
double seconds_between_barriers(Communicator& ranks, int calls, const std::function<void()>& once) {
  once();
  ranks.barrier();
  return seconds_of([&] {
    for (int i = 0; i < calls; ++i) once();
    ranks.barrier();
  });
}

// Two ranks' full buffers; in this process, apart by what keeps them off the same cache sets.
class ThreadRanks {
 public:
  ThreadRanks() {
    for (int rank = 0; rank < 2; ++rank) {
      arenas_[rank] = make_cpu_device({.rank = rank})->make_arena(kMost);
      fill_random(reinterpret_cast<float*>(arenas_[rank].base()), kMost / 4, -1, 1);
    }
  }
  double seconds(Kind kind, std::int64_t bytes, int calls, bool meet, std::int64_t* received) {
    double result = 0;
    run_local(2, {.pin = true}, [&](Communicator ranks) {
      const int rank = ranks.rank();
      const RankBuffers buffers{arenas_[rank].base(), arenas_[1 - rank].base(), bytes / 2, rank};
      const double seconds = seconds_between_barriers(ranks, calls, [&] {
        if (meet)
          call(kind, ranks, buffers);
        else
          move_without_meeting(kind, buffers);
      });
      if (rank != 0) return;
      result = seconds;
      *received = ranks.bytes_received() / (calls + 1);
    });
    return result;
  }

 private:
  Arena arenas_[2];
};

// Keeps the calling thread on one of two ranks' cores.
class OnOwnCores {
 public:
  explicit OnOwnCores(int rank) : all_(allowed_cores()) { bind_thread(share_of_cores(all_, rank, 2), ""); }
  ~OnOwnCores() { bind_thread(all_, ""); }
  OnOwnCores(const OnOwnCores&) = delete;
  OnOwnCores& operator=(const OnOwnCores&) = delete;

 private:
  std::vector<int> all_;
};

// This process's full buffer as a rank of two.
class ProcessRank {
 public:
  ProcessRank()
      : ranks_(make_world()),
        arena_(make_cpu_device({.rank = ranks_.rank()})->make_arena(kMost, ranks_.wants_shared_arena())) {
    fill_random(reinterpret_cast<float*>(arena_.base()), kMost / 4, -1, 1);
    ranks_.register_arena(arena_);
  }
  bool first() const { return ranks_.rank() == 0; }
  Communicator& ranks() { return ranks_; }
  double seconds(Kind kind, std::int64_t bytes, int calls, bool library) {
    const RankBuffers buffers{arena_.base(), nullptr, bytes / 2, ranks_.rank()};
    const OnOwnCores pinned(ranks_.rank());  // as threads are
    return seconds_between_barriers(ranks_, calls, [&] {
      if (!library) return call(kind, ranks_, buffers);
#ifdef TESSERA_HAS_MPI
      if (kind == Kind::all_gather)
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffers.full, static_cast<int>(bytes / 2), MPI_BYTE,
                      MPI_COMM_WORLD);
      else
        MPI_Reduce_scatter_block(MPI_IN_PLACE, buffers.full, static_cast<int>(bytes / 8), MPI_FLOAT, MPI_SUM,
                                 MPI_COMM_WORLD);
#endif
    });
  }

 private:
  static Communicator make_world() {
    if (launched_by_mpi()) return make_mpi_world();
    const char* const hosts = std::getenv("TESSERA_BENCH_HOSTS");
    const bool apart = hosts != nullptr && std::string_view(hosts) == "2";
    return make_process_world(make_control_world(control_options_from_environment()),
                              {.ranks_per_host = apart ? 1 : 0});
  }

  Communicator ranks_;
  Arena arena_;
};

std::unique_ptr<ProcessRank> process_rank;  // none where no launcher started this process

void collective(benchmark::State& state, Kind kind) {
  static ThreadRanks threads;
  const std::int64_t bytes = state.range(0);
  const int calls = static_cast<int>(std::clamp<std::int64_t>((256 << 20) / bytes, 1, 2000));
  std::int64_t received = 0, unused = 0;
  std::vector<std::string> names = {"limit", "threads"};
  const bool by_mpi = launched_by_mpi();
  if (process_rank) names.emplace_back("processes");
  if (process_rank && by_mpi) names.emplace_back("library");
  Pairs pairs(std::move(names));
  for (auto round : state) {
    if (!process_rank || process_rank->first()) {
      pairs.add(0, threads.seconds(kind, bytes, calls, false, &unused));
      const double seconds = threads.seconds(kind, bytes, calls, true, &received);
      pairs.add(1, seconds);
      state.SetIterationTime(seconds / calls);
    }
    if (!process_rank) continue;
    process_rank->ranks().barrier();
    pairs.add(2, process_rank->seconds(kind, bytes, calls, false));
    if (by_mpi) pairs.add(3, process_rank->seconds(kind, bytes, calls, true));
    if (!process_rank->first()) state.SetIterationTime(pairs.seconds(2));
  }
  if (process_rank && !process_rank->first()) return;
  pairs.report(state, 1e-9 * static_cast<double>(bytes) * calls, "GB/s");
  state.counters["received/least"] = static_cast<double>(received) / (static_cast<double>(bytes) / 2);
  if (!process_rank) return;
  state.counters["threads/processes"] = pairs.ratio(2, 1);
  if (by_mpi) state.counters["threads/library"] = pairs.ratio(1, 3);
}

void arguments(benchmark::internal::Benchmark* benchmark) {
  // Every rank makes the same number of rounds.
  benchmark->ArgName("bytes")->UseManualTime()->Iterations(21)->Unit(benchmark::kMicrosecond);
  for (const std::int64_t bytes : {1 << 10, 1 << 14, 1 << 16, 1 << 20, 1 << 24, 1 << 28})
    benchmark->Arg(bytes);
}

BENCHMARK_CAPTURE(collective, all_gather, Kind::all_gather)->Apply(arguments);
BENCHMARK_CAPTURE(collective, reduce_scatter, Kind::reduce_scatter)->Apply(arguments);

class Silent final : public benchmark::BenchmarkReporter {
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using tessera::process_rank;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (tessera::find_launcher() != tessera::Launcher::threads)
    process_rank = std::make_unique<tessera::ProcessRank>();
  if (process_rank && process_rank->ranks().world() != 2) {
    if (process_rank->first()) std::fprintf(stderr, "bench_collectives: needs two processes (mpirun -n 2)\n");
    process_rank.reset();
    return 2;
  }
  tessera::Silent silent;
  if (process_rank && !process_rank->first())
    benchmark::RunSpecifiedBenchmarks(&silent);
  else
    benchmark::RunSpecifiedBenchmarks();
  process_rank.reset();
}
