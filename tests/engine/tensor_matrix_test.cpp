// Tensor ranks: layers that several ranks split train as one rank does, and no strategy changes a bit.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

double furthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t k = 0; k < a.size(); ++k) most = std::max(most, std::fabs(a[k] - b[k]) / std::fabs(b[k]));
  return most;
}

RunConfig base(Family family, DType dtype) {
  return {.family = family, .reduce = ReduceWhen::each, .dtype = dtype, .poison = true, .heads = 4};
}

struct Cell {
  Family family;
  DType dtype;
};

class TensorMatrix : public ::testing::TestWithParam<Cell> {};

TEST_P(TensorMatrix, LossesAreThoseOfOneRank) {
  RunConfig run = base(GetParam().family, GetParam().dtype);
  const RunResult alone = known_run(run);
  EXPECT_NE(alone.losses.front(), alone.losses.back()) << "the reference run does not learn";
  for (const int ranks : {2, 4}) {
    run.tensor = ranks;
    const RunResult split = known_run(run);
    const bool fp32 = run.dtype == DType::fp32;
    EXPECT_LT(furthest(split.losses, alone.losses), fp32 ? 1e-6 : 2e-3) << to_string(run);
    EXPECT_LT(furthest(split.norms, alone.norms), fp32 ? 1e-5 : 5e-2) << to_string(run);
    ASSERT_EQ(split.weights.size(), alone.weights.size());
  }
}

// All of them on two tensor ranks.
TEST_P(TensorMatrix, NoStrategyChangesABit) {
  RunConfig run = base(GetParam().family, GetParam().dtype);
  run.tensor = 2;
  run.steps = 6;
  const RunResult expected = run_training(run);
  const bool tied = GetParam().family == Family::gpt2;  // over pipeline ranks: two sums, not one
  int variant = 0;
  for (const int stage : {0, 1, 2, 3})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      RunConfig other = dealt(run, 1, 1 + variant % 2);
      other.stage = stage;
      other.recompute = recompute;
      other.prefetch = ++variant % 3;
      other.strict_order = variant % 5 == 0;
      other.pipeline = variant % 4 == 0 && !tied ? 2 : 1;
      if (variant % 3 == 0 && recompute != Recompute::none) other.offload.activations = Space::host;
      if (variant % 6 == 1) other.offload.states = Space::host;
      EXPECT_TRUE(same_bits(run_training(other), expected)) << to_string(other);
    }
}

// The head works on chunks of rows, which exchange statistics one by one.
TEST(TensorMatrix, AHeadInChunksGivesTheSameLosses) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    RunConfig run = base(Family::llama, dtype);
    run.steps = 6;
    run.tensor = 2;
    const RunResult whole = run_training(run);
    run.logits_bytes = 4 * 31 * 5;  // 4 chunks of 16 rows on a rank
    const RunResult chunks = run_training(run);
    EXPECT_LT(furthest(chunks.losses, whole.losses), dtype == DType::fp32 ? 1e-6 : 1e-3);
    EXPECT_NE(chunks.weights, whole.weights) << "there is one chunk only";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorMatrix,
                         ::testing::Values(Cell{Family::gpt2, DType::fp32}, Cell{Family::gpt2, DType::bf16},
                                           Cell{Family::llama, DType::fp32},
                                           Cell{Family::llama, DType::bf16}),
                         [](const ::testing::TestParamInfo<Cell>& of) {
                           return std::string(of.param.family == Family::llama ? "llama" : "gpt2") + "_" +
                                  std::string(name_of(of.param.dtype));
                         });

}  // namespace
}  // namespace tessera::testing
