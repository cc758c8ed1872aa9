// Contenders timed in turn: the speed of a shared machine drifts, and slows neighbours in time alike, so only
// ratios within a round mean something. The first contender is the limit that the others are measured
// against.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Function>
double seconds_of(const Function& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Seconds by round, one row a contender.
class Pairs {
 public:
  explicit Pairs(std::vector<std::string> names) : names_(std::move(names)), seconds_(names_.size()) {}

  void add(std::size_t contender, double seconds) { seconds_[contender].push_back(seconds); }
  double seconds(std::size_t contender) const { return median(seconds_[contender]); }
  // The median over rounds of `base`'s time over `contender`'s: 1 where as fast, less where slower.
  double ratio(std::size_t contender, std::size_t base = 0) const {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < seconds_[contender].size(); ++round)
      ratios.push_back(seconds_[base][round] / seconds_[contender][round]);
    return median(std::move(ratios));
  }

  // As counters: `work` units a second of each contender ("limit_GB/s"), and each one's ratio to the limit.
  void report(benchmark::State& state, double work, const std::string& unit) const {
    for (std::size_t c = 0; c < names_.size(); ++c) {
      state.counters[names_[c] + "_" + unit] = work / seconds(c);
      if (c > 0) state.counters[names_[c] + "/limit"] = ratio(c);
    }
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<double>> seconds_;
};

}  // namespace tessera
