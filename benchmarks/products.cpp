// The fp32 products of a linear layer's backward, whose right side is stored row by row: as kernels/matmul.h
// asks oneDNN for them, beside the same with the right side read where it lies (which a leading dim says).
//   bench_products --benchmark_filter=input      the gradient of the input: [256, out] x [out, in]
//   bench_products --benchmark_filter=weight     of the weight: [out, 256] x [256, in]
// The argument is `in`, the numel of those rows; `out` is 768.
#include "benchmarks/pairs.h"
#include "benchmarks/random_data.h"
#include "kernels/matmul.h"
#include "tessera/device.h"
#include "tessera/machine.h"
#include "tessera/shape.h"

namespace tessera {
namespace {

constexpr std::int64_t kTokens = 256, kOut = 768;

void take_turns(benchmark::State& state, const kernels::MatmulShape& chosen) {
  kernels::MatmulShape in_place = chosen;
  in_place.ldb = chosen.n;
  const int threads = read_cores();
  const std::int64_t a = chosen.m * chosen.k, b = chosen.k * chosen.n, c = chosen.m * chosen.n;
  const std::int64_t workspace = std::max(kernels::matmul_workspace_bytes(in_place, threads),
                                          kernels::matmul_workspace_bytes(chosen, threads));
  Arena arena({.bytes = (a + b + c) * 4 + 3 * 64 + workspace});
  auto* values = reinterpret_cast<float*>(arena.base());
  fill_random(values, a + b, -1.0f, 1.0f);
  std::byte* const result = arena.base() + round_up((a + b) * 4, 64);
  const kernels::ComputeContext context{.threads = threads,
                                        .workspace = {result + round_up(c * 4, 64), workspace}};
  const auto seconds = [&](const kernels::MatmulShape& shape) {
    return seconds_of([&] { kernels::matmul(context, shape, values, values + a, nullptr, result); });
  };
  seconds(in_place), seconds(chosen);
  Pairs pairs({"in_place", "chosen"});
  for (auto round : state) {
    pairs.add(0, seconds(in_place));
    const double own = seconds(chosen);
    pairs.add(1, own);
    state.SetIterationTime(own);
  }
  const double operations = 2e-9 * static_cast<double>(chosen.m * chosen.n * chosen.k);
  state.counters["in_place_GFLOP/s"] = operations / pairs.seconds(0);
  state.counters["chosen_GFLOP/s"] = operations / pairs.seconds(1);
  state.counters["chosen/in_place"] = pairs.ratio(1);
}

void input(benchmark::State& state) { take_turns(state, {.m = kTokens, .n = state.range(0), .k = kOut}); }
void weight(benchmark::State& state) {
  take_turns(state, {.m = kOut, .n = state.range(0), .k = kTokens, .transpose_a = true});
}

void arguments(benchmark::internal::Benchmark* benchmark) {
  for (const std::int64_t in : {768, 1280, 1536, 1600, 2048, 2304, 2560, 3072, 3584, 5120, 5504})
    benchmark->Arg(in);
  benchmark->ArgName("in")->Iterations(25)->UseManualTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(input)->Apply(arguments);
BENCHMARK(weight)->Apply(arguments);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
