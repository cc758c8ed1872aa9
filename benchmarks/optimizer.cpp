// The fused AdamW pass, bf16 gradient in, fp32 parameter and moments in place, bf16 parameter out: 28 bytes a
// parameter. Its limit is the memory: three streams of fp32 read and written in place, of as many bytes
// together, as fast as this machine allows. And the same with moments in bf16: 20 bytes.
#include <cstdint>

#include "benchmarks/memory_limit.h"
#include "benchmarks/pairs.h"
#include "kernels/casts.h"
#include "kernels/optimizer.h"

namespace tessera {
namespace {

void adamw(benchmark::State& state) {
  const std::int64_t numel = state.range(0);
  const int threads = static_cast<int>(state.range(1));
  const DType moment_type = state.range(2) == 32 ? DType::fp32 : DType::bf16;
  const std::int64_t bytes =
      kUpdatedBytes - 4 * (4 - bytes_of(moment_type));  // two moments, read and written
  const std::int64_t limit_numel = numel * bytes / kReadAndWritten / 16 * 16;
  const Streams limit(limit_numel, 3);
  const Streams states(numel, 3), halves(numel / 2, 2);
  auto* gradient = reinterpret_cast<kernels::Bf16*>(halves[0]);
  fill_random(gradient, numel, -1, 1);
  fill_random(states[2], numel, 0, 1);  // the second moment
  if (moment_type == DType::bf16)
    for (const int moment : {1, 2})
      kernels::cast({}, numel, DType::fp32, states[moment], DType::bf16, states[moment]);
  kernels::OptimizerArguments arguments{.numel = numel,
                                        .gradient_type = DType::bf16,
                                        .gradient = gradient,
                                        .master = states[0],
                                        .moment_count = 2,
                                        .moments = {states[1], states[2]},
                                        .moment_type = moment_type,
                                        .parameter_type = DType::bf16,
                                        .parameter = halves[1],
                                        .coefficients = {}};
  const AdamWOptions options{.beta2 = 0.95};
  rules::RuleTerms terms{.learning_rate = 1e-4, .weight_decay = 0.1};
  const kernels::ComputeContext context{.threads = threads, .workspace = {}};

  Pairs pairs({"limit", "adamw"});
  for (auto round : state) {
    pairs.add(0, seconds_of([&] { read_and_write(threads, limit, limit_numel); }));
    arguments.coefficients = rules::coefficients_of(options, terms);
    arguments.rounding.key = static_cast<std::uint64_t>(terms.step);
    ++terms.step;
    const double seconds = seconds_of([&] { kernels::optimizer_update(context, arguments); });
    pairs.add(1, seconds);
    state.SetIterationTime(seconds);
  }
  pairs.report(state, static_cast<double>(numel * bytes) * 1e-9, "GB/s");
}

BENCHMARK(adamw)
    ->ArgNames({"numel", "threads", "moments"})
    ->ArgsProduct({{1 << 20, 1 << 26}, {1, 2}, {32, 16}})
    ->UseManualTime()
    ->MinTime(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
