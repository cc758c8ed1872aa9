// The file on disk in calls of 32 MiB, as an io lane makes them, beside a plain sequential loop of O_DIRECT
// pread or pwrite with blocks of 1 MiB, and beside threads of such loops, as many as are fastest here
// ("deep"). The file lies in TMPDIR, or in /tmp.
#include "src/device/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/pairs.h"
#include "benchmarks/random_data.h"
#include "tessera/device.h"

namespace tessera {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kCallBytes = 32 * kMiB;
constexpr int kMostThreads = 32;

std::string directory() { return std::filesystem::temp_directory_path().string(); }

// Blocks of 1 MiB, one after the other, in `threads` equal stretches at a time; each thread has a block of
// memory.
class PlainFile {
 public:
  PlainFile(std::int64_t bytes, std::byte* memory) : bytes_(bytes), memory_(memory) {
    file_ = open(directory().c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (file_ < 0 || fallocate(file_, 0, 0, bytes) != 0)
      throw std::runtime_error(fmt::format("no O_DIRECT in '{}': {}", directory(), std::strerror(errno)));
  }
  ~PlainFile() { close(file_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  void move(bool write, int threads) const {
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back([=, this] { move_part(write, t, threads); });
    move_part(write, 0, threads);
  }

 private:
  void move_part(bool write, int part, int parts) const {
    const std::int64_t blocks = bytes_ / kMiB;
    for (std::int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      std::byte* memory = memory_ + part * kMiB;
      const ssize_t moved =
          write ? pwrite(file_, memory, kMiB, block * kMiB) : pread(file_, memory, kMiB, block * kMiB);
      if (moved != kMiB) std::terminate();
    }
  }

  std::int64_t bytes_;
  std::byte* memory_;
  int file_;
};

void move(device::Disk& disk, bool write, std::byte* memory) {
  for (std::int64_t offset = 0; offset < disk.bytes(); offset += kCallBytes)
    if (write)
      disk.write(offset, memory, kCallBytes);
    else
      disk.read(offset, memory, kCallBytes);
}

int fastest_threads(const PlainFile& file, bool write) {
  int fastest = 1;
  double least = 1e30;
  for (int threads = 2; threads <= kMostThreads; threads *= 2) {
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i) seconds.push_back(seconds_of([&] { file.move(write, threads); }));
    if (median(seconds) >= least) continue;
    least = median(seconds);
    fastest = threads;
  }
  return fastest;
}

void disk(benchmark::State& state, bool write) {
  const std::int64_t bytes = state.range(0) * kMiB;
  const Arena arena({.bytes = kCallBytes});
  fill_random(reinterpret_cast<float*>(arena.base()), kCallBytes / 4, -1, 1);
  const PlainFile plain(bytes, arena.base());
  device::Disk uring({.directory = directory(), .bytes = bytes});
  uring.register_memory(arena.base(), kCallBytes);
  device::Disk threads({.directory = directory(), .bytes = bytes, .io_uring = false});
  // What was only reserved is read without the disk, and its first write takes longer.
  plain.move(true, 4);
  for (device::Disk* each : {&uring, &threads}) move(*each, true, arena.base());
  const int deep = fastest_threads(plain, write);

  Pairs pairs({"limit", "deep", "uring", "threads"});
  for (auto round : state) {
    pairs.add(0, seconds_of([&] { plain.move(write, 1); }));
    pairs.add(1, seconds_of([&] { plain.move(write, deep); }));
    const double seconds = seconds_of([&] { move(uring, write, arena.base()); });
    pairs.add(2, seconds);
    pairs.add(3, seconds_of([&] { move(threads, write, arena.base()); }));
    state.SetIterationTime(seconds);
  }
  pairs.report(state, static_cast<double>(bytes) * 1e-9, "GB/s");
  state.counters["deep_threads"] = deep;
  state.counters["uring/deep"] = pairs.ratio(2, 1);
  state.counters["threads/deep"] = pairs.ratio(3, 1);
  state.SetLabel(fmt::format("uring: {}; threads: {}", uring.description(), threads.description()));
}

void arguments(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("MiB")->Arg(256)->Arg(1024)->UseManualTime()->Iterations(11)->Unit(
      benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(disk, read, false)->Apply(arguments);
BENCHMARK_CAPTURE(disk, write, true)->Apply(arguments);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
