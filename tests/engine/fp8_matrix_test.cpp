// Products in fp8 in the bitwise matrix: every stage, world and recomputation gives the same bits, since what
// a product rounds is a function of its operands alone.
#include <gtest/gtest.h>

#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

RunConfig fp8_run(Family family) {
  return {.family = family,
          .world = 1,
          .stage = 0,
          .reduce = ReduceWhen::each,
          .dtype = DType::bf16,
          .prefetch = 0,
          .strict_order = true,
          .microbatches = 4,
          .steps = 6,
          .fp8_products = true};
}

class Fp8Matrix : public ::testing::TestWithParam<Family> {};

TEST_P(Fp8Matrix, EveryStageAndWorldGivesTheSameBits) {
  const RunConfig base = fp8_run(GetParam());
  const RunResult expected = run_training(base);
  EXPECT_LT(expected.losses.back(), expected.losses.front() * 0.97) << "the reference run does not learn";
  for (const int world : {1, 2})
    for (int stage = world == 1 ? 1 : 0; stage <= 3; ++stage) {
      RunConfig run = dealt(base, 1, world);
      run.stage = stage;
      run.prefetch = 1;
      run.strict_order = false;
      run.recompute = stage % 2 == 0 ? Recompute::full : Recompute::none;
      run.poison = true;
      ASSERT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
    }
}

// It is another computation than bf16's, and near it.
TEST_P(Fp8Matrix, IsNearBf16AndNotIt) {
  RunConfig run = fp8_run(GetParam());
  const RunResult fp8 = run_training(run);
  run.fp8_products = false;
  const RunResult bf16 = run_training(run);
  EXPECT_NE(fp8.fingerprint, bf16.fingerprint);
  EXPECT_NE(fp8.losses, bf16.losses);
  EXPECT_LT(furthest(fp8.losses, bf16.losses), 0.01);
  EXPECT_LT(furthest(fp8.norms, bf16.norms), 0.1);
}

// Tiles are those of what a rank has of a layer, so that blocks have them on any number of ranks.
TEST(Fp8Runs, TensorBlocksGiveTheSameBitsOnOneRankAndTwo) {
  RunConfig run = fp8_run(Family::gpt2);
  run.heads = 16;  // of 8 channels each, and 12 tokens in a sequence
  run.tensor_blocks = 2;
  run.attention_dropout = 0;
  run.sequences = 4;
  const RunResult expected = run_training(run);
  run.tensor = 2;
  EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
}

TEST(Fp8Runs, AdaptersStayAsTheyAre) {
  RunConfig run = fp8_run(Family::llama);
  run.lora_rank = 4;
  const RunResult expected = run_training(run);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  run.stage = 3;
  run.prefetch = 1;
  run.strict_order = false;
  EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
}

INSTANTIATE_TEST_SUITE_P(Families, Fp8Matrix, ::testing::Values(Family::gpt2, Family::llama),
                         [](const auto& of) { return name_of(of.param); });

}  // namespace
}  // namespace tessera::testing
