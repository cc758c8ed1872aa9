// How fast a model makes tokens with cached keys and values, beside the memory: a step reads all weights of
// its products once, so that it takes at least as long as reading so many bytes. Both take turns.
//   bench_decode --benchmark_filter=llama-1b
// Arguments: whether the type is bf16; threads of the rank, and of the reading, 0
// for all cores; tokens in the cache.
#include <cstring>
#include <memory>

#include "benchmarks/pairs.h"
#include "hwy/highway.h"
#include "tessera/communicator.h"
#include "tessera/device.h"
#include "tessera/machine.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The sum of 64-bit words, by all threads.
std::uint64_t read_all(const std::byte* bytes, std::int64_t count, int threads) {
  std::uint64_t total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
  for (int part = 0; part < threads; ++part) {
    const hn::ScalableTag<std::uint64_t> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const std::int64_t words = count / 8 / threads / (4 * lanes) * (4 * lanes);
    const auto* from = reinterpret_cast<const std::uint64_t*>(bytes) + part * words;
    auto a = hn::Zero(d), b = a, c = a, e = a;
    for (std::int64_t i = 0; i < words; i += 4 * lanes) {
      a = hn::Add(a, hn::LoadU(d, from + i));
      b = hn::Add(b, hn::LoadU(d, from + i + lanes));
      c = hn::Add(c, hn::LoadU(d, from + i + 2 * lanes));
      e = hn::Add(e, hn::LoadU(d, from + i + 3 * lanes));
    }
    total += hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
  }
  return total;
}

// Bytes of the weights that the products of a token read: all matrices, of the token table once.
std::int64_t weight_bytes(const Model& model) {
  std::int64_t bytes = 0;
  for (const UnitSpec& unit : model.units())
    for (const ParameterSpec& parameter : unit.parameters) {
      const bool looked_up = parameter.name == "embed.token" || parameter.name == "embed.position";
      if (parameter.shape.size() == 2 && !looked_up)
        bytes += numel_of(parameter.shape) * bytes_of(parameter.dtype);
    }
  return bytes;
}

void take_turns(benchmark::State& state, Model (*make)(DType)) {
  const DType type = state.range(0) != 0 ? DType::bf16 : DType::fp32;
  const int threads = state.range(1) > 0 ? static_cast<int>(state.range(1)) : read_cores();
  const std::int64_t cached = state.range(2);
  const auto model = std::make_shared<const Model>(make(type));
  const std::int64_t bytes = weight_bytes(*model);
  run_local(1, {}, [&](Communicator world) {
    TrainerOptions options;
    options.engine.threads_per_rank = threads;
    options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
    options.batch = {.sequences = 1, .length = 1};
    options.trains = false;
    options.cached_tokens = cached + state.max_iterations + 2;
    Trainer trainer(world, model, options);
    Arena words({.bytes = bytes});
    std::memset(words.base(), 1, static_cast<std::size_t>(bytes));
    trainer.extend(std::vector<std::int32_t>(static_cast<std::size_t>(cached), 7));
    Pairs pairs({"limit", "decode"});
    for (auto round : state) {
      pairs.add(0, seconds_of([&] { benchmark::DoNotOptimize(read_all(words.base(), bytes, threads)); }));
      const double own = seconds_of([&] { trainer.extend(std::vector<std::int32_t>{11}); });
      pairs.add(1, own);
      state.SetIterationTime(own);
    }
    pairs.report(state, static_cast<double>(bytes) * 1e-9, "GB/s");
    state.counters["tokens/s"] = 1 / pairs.seconds(1);
  });
}

void gpt2_124m(benchmark::State& state) {
  take_turns(state, [](DType type) { return make_gpt2(Gpt2Config::preset("gpt2-124m"), type); });
}
void llama_1b(benchmark::State& state) {
  take_turns(state, [](DType type) { return make_llama(LlamaConfig::preset("llama-1b"), type); });
}

void arguments(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"bf16", "threads", "cached"})->Iterations(25)->UseManualTime();
  benchmark->Unit(benchmark::kMillisecond);
  for (const int threads : {1, 0})
    for (const int cached : {16, 900}) benchmark->Args({1, threads, cached});
}
BENCHMARK(gpt2_124m)->Apply(arguments)->Args({0, 0, 16});
BENCHMARK(llama_1b)->Apply(arguments);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
