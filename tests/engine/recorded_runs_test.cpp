// Runs whose final weights, losses and norms were recorded as hashes: a change of the program that should
// change no number changes none of these. Chains and the toy model compute in plain C++ without contraction,
// and the engine by correctly rounded operations in a fixed order. So their hashes hold on every processor
// and at every optimisation, in debug and sanitized builds, too. One function of the C library enters: pow()
// in float64, from which Adam's bias corrections are rounded to fp32.
//
// GPT-2, Llama and MLP multiply by oneDNN. Their hashes are kept by oneDNN's version and the instruction sets
// in use, and these runs are skipped where the table has none. Those of lesser processors were recorded on a
// Zen 4 that was restricted to their instructions. oneDNN looks at the size of caches, too; that it decides
// anything for shapes as small as these has not been seen. Where hashes differ under one key, the key lacks
// something.
//
// To record anew, into the table beside this file or another:
//   TESSERA_RECORD=tests/engine/recorded_runs.txt engine_recorded_runs_test
// Rows that were not run (--gtest_filter), and those of other processors, stay. With
// TESSERA_RECORD_ONLY=norms (or weights, losses) a run of which anything else changed is not recorded, and
// fails. To test or record as on a lesser processor, set ONEDNN_MAX_CPU_ISA (AVX2, AVX512_CORE,
// AVX512_CORE_VNNI) and TESSERA_KERNEL_ISA (AVX2, AVX3) as well.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "tests/engine/recorded_runs.h"
#include "tests/engine/recorded_table.h"

namespace tessera::testing {
namespace {

std::string variable(const char* name) {
  const char* set = std::getenv(name);
  return set == nullptr ? "" : set;
}

RecordedTable& table() {
  static RecordedTable known(TESSERA_RECORDED_RUNS);
  return known;
}

const std::vector<RecordedRun>& all_runs() {
  static const std::vector<RecordedRun> runs = [] {
    std::vector<RecordedRun> made;
    for (const auto& list : {recorded_chain_runs(), recorded_verb_runs(), recorded_model_runs()})
      made.insert(made.end(), list.begin(), list.end());
    return made;
  }();
  return runs;
}

bool is_run(const std::string& name) {
  return std::ranges::any_of(all_runs(), [&](const RecordedRun& run) { return run.name == name; });
}

// Restricts the kernels ahead of all runs; behind them writes the table where it is recorded.
class Recording : public ::testing::Environment {
 public:
  void SetUp() override {
    const std::string instructions = variable("TESSERA_KERNEL_ISA");
    if (!instructions.empty() && !restrict_kernels(instructions))
      GTEST_SKIP() << "TESSERA_KERNEL_ISA is " << instructions << ", which this processor or build lacks";
  }
  void TearDown() override {
    const std::string file = variable("TESSERA_RECORD");
    if (file.empty()) return;
    for (const auto& [place, hashes] : std::map(table().rows()))
      if (!is_run(place.first)) table().erase(place);
    table().write(file);
  }
};
const auto* const kRecording = ::testing::AddGlobalTestEnvironment(new Recording);

struct Column {
  const char* name;
  std::uint64_t RunHashes::*hash;
};
constexpr Column kColumns[] = {
    {"weights", &RunHashes::weights}, {"losses", &RunHashes::losses}, {"norms", &RunHashes::norms}};

// A line for each column but `but` that is recorded and differs.
std::string differences(const RunHashes& seen, const RunHashes& known, const std::string& but = "") {
  std::string text;
  for (const auto& [name, hash] : kColumns)
    if (name != but && known.*hash != kNotRecorded && seen.*hash != known.*hash)
      text += std::string("\n  ") + name + " are " + RecordedTable::hex(seen.*hash) + " and were " +
              RecordedTable::hex(known.*hash);
  return text;
}

void record(const RecordedTable::Place& place, const RunHashes& seen) {
  const RunHashes* known = table().find(place);
  const std::string only = variable("TESSERA_RECORD_ONLY");
  if (known != nullptr) {
    const std::string unwanted = differences(seen, *known, only);
    if (!only.empty() && !unwanted.empty()) {
      ADD_FAILURE() << place.first << " changed not only in its " << only << ":" << unwanted;
      return;
    }
    const std::string changes = differences(seen, *known);
    if (!changes.empty()) std::cout << place.first << " is recorded anew:" << changes << '\n';
  }
  table().set(place, seen);
}

class RecordedRuns : public ::testing::TestWithParam<std::size_t> {};

TEST_P(RecordedRuns, HaveTheBitsThatWereRecorded) {
  const RecordedRun& run = all_runs()[GetParam()];
  const RecordedTable::Place place = {run.name, run.portable ? kAnyProcessor : processor_key()};
  const bool records = !variable("TESSERA_RECORD").empty();
  if (!run.portable && !records && table().find(place) == nullptr)
    GTEST_SKIP() << "no hashes of " << run.name << " are recorded for this processor, " << place.second;
  History history;
  try {
    history = run.run();
  } catch (const UnsupportedError& unsupported) {
    if (run.portable) throw;
    GTEST_SKIP() << unsupported.what();
  }
  EXPECT_GE(history.applied(), 3);
  EXPECT_TRUE(history.is_finite());
  EXPECT_NE(history.steps.front().loss, history.steps.back().loss);
  const RunHashes seen = history.hashes();
  if (records) return record(place, seen);
  const RunHashes* known = table().find(place);
  ASSERT_NE(known, nullptr) << "no hashes of " << run.name << " are recorded";
  const std::string changes = differences(seen, *known);
  EXPECT_TRUE(changes.empty()) << run.name << " on " << place.second << ":" << changes;
}

INSTANTIATE_TEST_SUITE_P(All, RecordedRuns, ::testing::Range(std::size_t{0}, all_runs().size()),
                         [](const auto& of) { return all_runs()[of.param].name; });

TEST(RecordedTable, HasRowsOfRunsOnlyAndEnoughThatArePortable) {
  std::set<std::string> names;
  for (const RecordedRun& run : all_runs()) EXPECT_TRUE(names.insert(run.name).second) << run.name;
  int portable = 0;
  for (const auto& [place, hashes] : table().rows()) {
    EXPECT_TRUE(is_run(place.first)) << place.first << " is in the table and no run";
    portable += place.second == kAnyProcessor ? 1 : 0;
  }
  EXPECT_GE(portable, 40);
}

// So that a hash which covers nothing would be seen.
TEST(RecordedHashes, TellOneBitOfEachColumnApart) {
  StepResult step;
  step.applied = true;
  step.loss = 1.5;
  step.gradient_norm = 2.0;
  const History plain{.steps = {step}, .weights = {1.0f, 2.0f}};
  const RunHashes before = plain.hashes();
  History other = plain;
  other.weights[1] = std::nextafter(2.0f, 3.0f);
  EXPECT_EQ(differences(other.hashes(), before).find("\n  weights are "), 0u);
  EXPECT_EQ(differences(other.hashes(), before, "weights"), "");
  other = plain;
  other.steps[0].loss = std::nextafter(1.5, 2.0);
  EXPECT_EQ(differences(other.hashes(), before).find("\n  losses are "), 0u);
  other = plain;
  other.steps[0].gradient_norm = std::nextafter(2.0, 3.0);
  EXPECT_EQ(differences(other.hashes(), before).find("\n  norms are "), 0u);
  other = plain;
  other.steps[0].applied = false;
  EXPECT_NE(other.hashes(), before);
}

}  // namespace
}  // namespace tessera::testing
