// The fused AdamW pass, bf16 gradient in, fp32 parameter and moments in place, bf16 parameter out: 28 bytes a
// parameter. Its limit is the memory: three streams of fp32 read and written in place, of as many bytes
// together, as fast as this machine allows.
#include <omp.h>

#include <cstdint>
#include <cstring>

#include "benchmarks/pairs.h"
#include "hwy/highway.h"
#include "kernels/optimizer.h"
#include "tessera/device.h"

namespace tessera {
namespace {

constexpr std::int64_t kBytes = 28;       // of a parameter's update: 2 + 3 · (4 + 4) + 2
constexpr std::int64_t kLimitBytes = 24;  // of an element of each of three streams

// [0, count) in equal parts, one a thread, as the kernel splits it.
template <class Function>
void in_parts(int threads, std::int64_t count, const Function& function) {
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    function(count * part / parts / 16 * 16, count * (part + 1) / parts / 16 * 16);
  }
}

void read_and_write(float* a, float* b, float* c, std::int64_t begin, std::int64_t end) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f);
  for (std::int64_t i = begin; i < end; i += static_cast<std::int64_t>(hn::Lanes(d)))
    for (float* stream : {a, b, c}) hn::Store(hn::Mul(hn::Load(d, stream + i), factor), d, stream + i);
}

// Streams in one arena, apart by what keeps them off the same cache sets.
class Streams {
 public:
  Streams(std::int64_t numel, int count) : stride_(numel * 4 + 9472), arena_({.bytes = stride_ * count}) {
    std::memset(arena_.base(), 0, static_cast<std::size_t>(stride_ * count));
  }
  template <class T = float>
  T* operator[](int stream) const {
    return reinterpret_cast<T*>(arena_.base() + stream * stride_);
  }

 private:
  std::int64_t stride_;
  Arena arena_;
};

void adamw(benchmark::State& state) {
  const std::int64_t numel = state.range(0);
  const int threads = static_cast<int>(state.range(1));
  const std::int64_t limit_numel = numel * kBytes / kLimitBytes / 16 * 16;
  const Streams limit(limit_numel, 3);
  const Streams states(numel, 3), halves(numel / 2, 2);
  auto* gradient = reinterpret_cast<std::uint16_t*>(halves[0]);
  for (std::int64_t i = 0; i < numel; ++i) {
    states[0][i] = static_cast<float>(i % 1009) * 1e-3f;
    gradient[i] = static_cast<std::uint16_t>(0x3f80 + i % 127);  // 1 to 2
  }
  kernels::AdamWArguments arguments{.numel = numel,
                                    .gradient_type = DType::bf16,
                                    .gradient = gradient,
                                    .master = states[0],
                                    .m = states[1],
                                    .v = states[2],
                                    .parameter_type = DType::bf16,
                                    .parameter = halves[1],
                                    .coefficients = {}};
  kernels::AdamWSettings settings{.learning_rate = 1e-4, .weight_decay = 0.1};
  const kernels::ComputeContext context{.threads = threads, .workspace = {}};

  Pairs pairs({"limit", "adamw"});
  for (auto round : state) {
    pairs.add(0, seconds_of([&] {
                in_parts(threads, limit_numel, [&](std::int64_t begin, std::int64_t end) {
                  read_and_write(limit[0], limit[1], limit[2], begin, end);
                });
              }));
    arguments.coefficients = kernels::make_adamw_coefficients(settings);
    ++settings.step;
    const double seconds = seconds_of([&] { kernels::adamw_update(context, arguments); });
    pairs.add(1, seconds);
    state.SetIterationTime(seconds);
  }
  pairs.report(state, static_cast<double>(numel * kBytes) * 1e-9, "GB/s");
}

BENCHMARK(adamw)
    ->ArgNames({"numel", "threads"})
    ->ArgsProduct({{1 << 20, 1 << 26}, {1, 2}})
    ->UseManualTime()
    ->MinTime(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
