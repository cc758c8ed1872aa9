// Every strategy gives the same bits: stages × prefetch × order × resident units × recompute, within a world,
// a reduce choice and a type.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

using Cell = std::tuple<int, ReduceWhen, DType>;

class BitwiseMatrix : public ::testing::TestWithParam<Cell> {};

TEST_P(BitwiseMatrix, EveryStrategyGivesTheSameBits) {
  const auto [world, reduce, dtype] = GetParam();
  const RunConfig base{.world = world,
                       .stage = 0,
                       .reduce = reduce,
                       .dtype = dtype,
                       .prefetch = 0,
                       .strict_order = true,
                       .steps = 8};
  const RunResult expected = run_training(base);
  EXPECT_LT(expected.losses.back(), expected.losses.front() * 0.95) << "the reference run does not learn";
  EXPECT_GT(expected.norms.front(), base.max_norm) << "clipping never happens";
  int cell = static_cast<int>(dtype) + world;  // so that a sample takes others of each
  for (int stage = 0; stage <= 3; ++stage)
    for (int prefetch = 0; prefetch <= 2; ++prefetch)
      for (bool strict : {true, false})
        for (int resident : {0, 2})
          for (Recompute recompute : {Recompute::none, Recompute::full}) {
            if (resident > 0 && stage < 3) continue;
            if (!is_sampled(cell++)) continue;
            RunConfig run = base;
            run.stage = stage;
            run.prefetch = prefetch;
            run.strict_order = strict;
            run.resident_units = resident;
            run.recompute = recompute;
            run.poison = true;
            ASSERT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
          }
}

std::string cell_name(const ::testing::TestParamInfo<Cell>& info) {
  const auto& [world, reduce, dtype] = info.param;
  return "world" + std::to_string(world) + (reduce == ReduceWhen::each ? "_each_" : "_last_") +
         std::string(name_of(dtype));
}

INSTANTIATE_TEST_SUITE_P(Worlds, BitwiseMatrix,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::Values(ReduceWhen::each, ReduceWhen::last),
                                            ::testing::Values(DType::fp32, DType::bf16)),
                         cell_name);

}  // namespace
}  // namespace tessera::testing
