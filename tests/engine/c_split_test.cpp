// A trainer in C that splits its own layers over tensor ranks trains as on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "tests/engine/c_split.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr double kTolerance = 1e-6;  // sums that tensor ranks cut differ by rounding

struct SplitCase {
  int tensor = 1, shard = 1, stage = 0;
  int dropped = SPLIT_NOTHING;
  double clip = 0;
  std::string load = {}, save = {};  // folders of checkpoints
};

split_run run_split(const SplitCase& of) {
  split_run run = {};
  EXPECT_EQ(tessera_options_init(&run.options, sizeof run.options), TESSERA_OK);
  tessera_options& o = run.options;
  o.tensor = of.tensor;  // shard is what is left
  o.splits_layers = 1;
  o.stage = of.stage;
  o.microbatches_per_step = SPLIT_MICROBATCHES;
  o.optimizer = TESSERA_SGD;
  o.momentum = 0.9;
  o.clip = of.clip;
  o.poison = o.guards = 1;
  run.dropped = of.dropped;
  run.load = of.load.empty() ? nullptr : of.load.c_str();
  run.save = of.save.empty() ? nullptr : of.save.c_str();
  EXPECT_EQ(tessera_run_ranks(of.tensor * of.shard, 60'000, split_rank_main, &run), TESSERA_OK)
      << tessera_last_error();
  return run;
}

bool same(const float (&a)[SPLIT_NUMEL], const float (&b)[SPLIT_NUMEL]) {
  return std::memcmp(a, b, sizeof a) == 0;
}

double furthest(const split_run& a, const split_run& b) {
  double most = 0;
  for (int k = 0; k < SPLIT_NUMEL; ++k)
    most = std::max(most, std::fabs(static_cast<double>(a.weights[k]) - static_cast<double>(b.weights[k])));
  return most;
}

void expect_near(const split_run& found, const split_run& expected) {
  EXPECT_LT(furthest(found, expected), kTolerance);
  for (int step = 0; step < SPLIT_STEPS; ++step) {
    EXPECT_NEAR(found.losses[step], expected.losses[step], kTolerance * expected.losses[step]);
    EXPECT_NEAR(found.norms[step], expected.norms[step], kTolerance * expected.norms[step]);
  }
}

TEST(CSplit, EveryMeshAndStageHasTheBitsOfItsTensorWidth) {
  const split_run alone = run_split({});
  EXPECT_LT(alone.losses[SPLIT_STEPS - 1], alone.losses[0]) << "the run does not learn";
  for (const int tensor : {1, 2, 4}) {
    std::optional<split_run> of_width;
    for (const int shard : {1, 2})
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE("tensor " + std::to_string(tensor) + ", shard " + std::to_string(shard) + ", stage " +
                     std::to_string(stage));
        const split_run run = run_split({.tensor = tensor, .shard = shard, .stage = stage});
        expect_near(run, alone);
        if (!of_width) of_width = run;
        EXPECT_TRUE(same(run.weights, of_width->weights));
        EXPECT_EQ(std::memcmp(run.norms, of_width->norms, sizeof run.norms), 0);
      }
  }
}

TEST(CSplit, EveryExchangedElementCounts) {
  for (const int tensor : {2, 4}) {
    const split_run expected = run_split({.tensor = tensor});
    for (const int dropped : {SPLIT_FORWARD, SPLIT_BACKWARD, SPLIT_SCATTERED, SPLIT_GATHERED})
      EXPECT_GT(furthest(run_split({.tensor = tensor, .dropped = dropped}), expected), 10 * kTolerance)
          << dropped;
  }
}

TEST(CSplit, ClipsByTheNormOfAllRanks) {
  const split_run free = run_split({});
  const double most = free.norms[0] / 3;
  const split_run clipped = run_split({.clip = most});
  EXPECT_GT(furthest(clipped, free), 10 * kTolerance) << "clipping does not bite";
  for (const int tensor : {2, 4})
    expect_near(run_split({.tensor = tensor, .shard = 2, .stage = 3, .clip = most}), clipped);
}

TEST(CSplit, ACheckpointContinuesOnAnotherTensorWidth) {
  std::optional<split_run> first;
  for (const int from : {1, 2, 4}) {
    const TemporaryFolder folder;
    const split_run saved = run_split({.tensor = from, .save = folder.file("run")});
    for (const int to : {4, 2, 1}) {
      const split_run run = run_split({.tensor = to, .shard = 2, .stage = 3, .load = folder.file("run")});
      EXPECT_TRUE(same(run.first_weights, saved.weights)) << from << " to " << to;
      EXPECT_GT(furthest(run, saved), 10 * kTolerance);
      if (!first) first = run;
      expect_near(run, *first);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
