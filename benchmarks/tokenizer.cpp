// Encoding and decoding of a text by one thread. The files come from the environment:
//   TESSERA_TOKENIZER=tokenizer.json TESSERA_TEXT=text.txt bench_tokenizer
// Rates are by the CPU's time: others may use the machine. peers/tokenizers_encode.py does the same by the
// tokenizers library.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tessera/tokenizer.h"

namespace tessera {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string text_of_environment() {
  std::ifstream in(variable("TESSERA_TEXT"), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Calls run(tokenizer, text) in rounds.
template <typename Run>
void time_rounds(benchmark::State& state, const Run& run) {
  const std::string text = text_of_environment();
  if (text.empty()) return state.SkipWithError("set TESSERA_TOKENIZER and TESSERA_TEXT to files");
  const Tokenizer tokenizer = Tokenizer::open(variable("TESSERA_TOKENIZER"));
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  for (auto round : state) run(tokenizer, text, ids);
  const auto bytes = static_cast<double>(text.size()) * static_cast<double>(state.iterations());
  state.counters["MB/s"] = benchmark::Counter(bytes * 1e-6, benchmark::Counter::kIsRate);
  state.counters["tokens"] = static_cast<double>(ids.size());
}

void encode(benchmark::State& state) {
  time_rounds(state, [](const Tokenizer& tokenizer, const std::string& text, const auto&) {
    benchmark::DoNotOptimize(tokenizer.encode(text));
  });
}

// In whole lines of 4096 bytes or a little more, as documents would come.
void encode_pieces(benchmark::State& state) {
  constexpr std::size_t kBytes = 4096;
  time_rounds(state, [](const Tokenizer& tokenizer, const std::string& text, const auto&) {
    const std::string_view all = text;
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t newline = all.find('\n', begin + kBytes - 1);
      const std::size_t end = newline == all.npos ? all.size() : newline + 1;
      benchmark::DoNotOptimize(tokenizer.encode(all.substr(begin, end - begin)));
      begin = end;
    }
  });
}

void decode(benchmark::State& state) {
  time_rounds(state,
              [](const Tokenizer& tokenizer, const std::string&, const std::vector<std::int32_t>& ids) {
                benchmark::DoNotOptimize(tokenizer.decode(ids));
              });
}

BENCHMARK(encode)->Iterations(5)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_pieces)->Iterations(5)->Unit(benchmark::kMillisecond);
BENCHMARK(decode)->Iterations(5)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
