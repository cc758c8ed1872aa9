// Small runs whose results are recorded as hashes: what a run is, what is hashed of it, and the lists of
// runs. The table, and what of it holds on which processor, is recorded_table.h's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/communicator.h"
#include "tessera/engine.h"
#include "tests/engine/toy.h"

namespace tessera::testing {

// FNV-1a (Fowler, Noll, Vo) over the values' bits. All NaNs count as one.
class Hash {
 public:
  void add(std::uint64_t bits) {
    for (int byte = 0; byte < 8; ++byte) {
      value_ = (value_ ^ (bits >> (8 * byte) & 0xFF)) * 0x100000001B3;
    }
  }
  void add(double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    add(std::isnan(value) ? 0x7FF8000000000000 : bits);
  }
  void add(std::string_view text) {
    for (const char letter : text) add(static_cast<std::uint64_t>(letter));
    add(std::uint64_t{text.size()});
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325;
};

struct RunHashes {
  std::uint64_t weights = 0;  // masters, parameters and moments behind the last step
  std::uint64_t losses = 0;   // of every step: loss, weight, loss scale, rate, and what was decided
  std::uint64_t norms = 0;    // of every step: the gradient's norm, and each parameter's where asked for
  bool operator==(const RunHashes&) const = default;
};

// What one rank saw.
struct History {
  std::vector<StepResult> steps;  // evaluations and abandoned steps, too
  std::vector<float> weights;

  RunHashes hashes() const {
    Hash weight_hash, losses, norms;
    for (const float value : weights) weight_hash.add(static_cast<double>(value));
    for (const StepResult& step : steps) {
      losses.add(static_cast<std::uint64_t>(step.step));
      losses.add(std::uint64_t{step.applied});
      losses.add(static_cast<std::uint64_t>(step.reason));
      losses.add(step.first_nonfinite);
      for (const double value : {step.loss, step.weight, step.loss_scale, step.learning_rate})
        losses.add(value);
      norms.add(step.gradient_norm);
      for (const double value : step.parameter_norms) norms.add(value);
    }
    return {weight_hash.value(), losses.value(), norms.value()};
  }
  int applied() const {
    int count = 0;
    for (const StepResult& step : steps) count += step.applied ? 1 : 0;
    return count;
  }
  bool is_finite() const {
    for (const float value : weights)
      if (!std::isfinite(value)) return false;
    return true;
  }
};

struct RecordedRun {
  std::string name;
  // The same bits on every processor: its compute is that of the tests, in plain C++, and the rest is the
  // engine's own.
  bool portable = true;
  std::function<History()> run;  // throws where ranks differ
};

// Runs `body` on ranks that are threads; returns what rank 0 saw. Error where another saw something else.
inline History on_ranks(int world, const std::function<History(const Communicator&)>& body) {
  std::mutex mutex;
  History first;
  IdVector<RunHashes> all(world);
  run_local(world, kBlocking, [&](Communicator comm) {
    History seen = body(comm);
    const std::lock_guard lock(mutex);
    all[comm.rank()] = seen.hashes();
    if (comm.rank() == 0) first = std::move(seen);
  });
  for (const RunHashes& hashes : all)
    if (hashes != all[0]) throw Error("ranks differ");
  return first;
}

std::vector<RecordedRun> recorded_chain_runs();  // models of the tests' own on Trainer, portable
std::vector<RecordedRun> recorded_verb_runs();   // the toy model by the engine's verbs, portable
std::vector<RecordedRun> recorded_model_runs();  // GPT-2, Llama and MLP: not portable

}  // namespace tessera::testing
