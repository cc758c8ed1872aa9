// Llama in the bitwise matrix: every stage, with and without recomputation, gives the same bits on one rank
// and on two. bitwise_matrix_test.cpp has the other dims of the matrix, which do not depend on the model.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

using Cell = std::tuple<int, DType>;

class LlamaMatrix : public ::testing::TestWithParam<Cell> {};

TEST_P(LlamaMatrix, EveryStageGivesTheSameBits) {
  const auto [world, dtype] = GetParam();
  RunConfig base{.family = Family::llama,
                 .world = world,
                 .stage = 0,
                 .reduce = ReduceWhen::each,
                 .dtype = dtype,
                 .prefetch = 0,
                 .strict_order = true,
                 .steps = 8};
  const RunResult expected = run_training(base);
  EXPECT_LT(expected.losses.back(), expected.losses.front() * 0.95) << "the reference run does not learn";
  for (int stage = 0; stage <= 3; ++stage)
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      RunConfig run = base;
      run.stage = stage;
      run.prefetch = 1;
      run.strict_order = false;
      run.recompute = recompute;
      run.poison = true;
      ASSERT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
    }
}

std::string cell_name(const ::testing::TestParamInfo<Cell>& info) {
  const auto& [world, dtype] = info.param;
  return "world" + std::to_string(world) + "_" + std::string(name_of(dtype));
}

INSTANTIATE_TEST_SUITE_P(Worlds, LlamaMatrix,
                         ::testing::Combine(::testing::Values(1, 2),
                                            ::testing::Values(DType::fp32, DType::bf16)),
                         cell_name);

}  // namespace
}  // namespace tessera::testing
