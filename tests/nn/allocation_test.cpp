#include <gtest/gtest.h>

#include "tests/nn/gpt2_fixture.h"
#include "tests/nn/llama_fixture.h"
#include "tests/nn/notable_allocations.h"

namespace tessera::testing {
namespace {

void run_once(ModelRun& run) {
  run.forward(StepKind::train);
  for (int unit = 0; unit < run.units(); ++unit) run.recompute(unit, Recompute::full);
  run.backward();
  run.forward(StepKind::evaluate);
}

TEST(Gpt2Allocations, NoneAfterTheFirstMicrobatch) {
  // Even the smallest tensor, a statistic of every token, would count.
  static_assert(kSmallBatch.tokens() * 4 >= static_cast<std::int64_t>(kNotableBytes));
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallGpt2 small(type);
    run_once(small.run);
    small.run.count_allocations = notable_allocations;
    run_once(small.run);
    EXPECT_EQ(small.run.allocations, 0);
  }
}

TEST(LlamaAllocations, NoneAfterTheFirstMicrobatch) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallLlama small(type);
    run_once(small.run);
    small.run.count_allocations = notable_allocations;
    run_once(small.run);
    EXPECT_EQ(small.run.allocations, 0);
  }
}

TEST(Gpt2Allocations, TheCounterCounts) {
  const std::int64_t before = notable_allocations();
  const std::vector<float> tensor(static_cast<std::size_t>(kSmallBatch.tokens()), 1.0f);
  EXPECT_EQ(tensor.back(), 1.0f);
  EXPECT_EQ(notable_allocations(), before + 1);
}

}  // namespace
}  // namespace tessera::testing
