// The examples of docs/embedding.md and docs/embed-in-c.md that split an MLP over tensor ranks: both train
// as on one rank, and C as C++.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "tessera/engine.h"
#include "tests/docs/split_layers_example.h"

namespace tessera::testing {
namespace {

void nt(int m, int n, int k, const float* a, const float* b, float* c) { product_nt(m, n, k, a, b, c); }
void nn(int m, int n, int k, const float* a, const float* b, float* c) { product_nn(m, n, k, a, b, c); }
void tn(int m, int n, int k, const float* a, const float* b, float* c) { product_tn(m, n, k, a, b, c); }

#include "split_layers.inc"

static_assert(kRows == EXAMPLE_ROWS && kWidth == EXAMPLE_WIDTH && kHidden == EXAMPLE_HIDDEN);

// The first layer's weights and the gradients of the samples, which the last step left.
split_example train(int ranks) {
  split_example example = {};
  run_local(ranks, {}, [&](Communicator world) {
    Engine engine(world, mlp(), on_tensor_ranks(ranks));
    engine.initialize([](ParameterId id, std::int64_t begin, std::span<float> values) {
      for (float& value : values) value = example_weight(id, begin++);
    });
    std::vector<float> x(kRows * kWidth), y(x), dy(x), dx(x);
    std::vector<float> hidden(kRows * kHidden), dhidden(hidden);
    for (int step = 0; step < EXAMPLE_STEPS; ++step) {
      double loss = 0;
      example_samples(x.data());
      engine.begin(StepKind::train);
      UnitLease there = engine.use(0, Pass::forward);
      forward(there, x.data(), hidden.data(), y.data());
      there.end();
      example_loss(y.data(), dy.data(), &loss);
      UnitLease back = engine.use(0, Pass::backward);
      backward(back, x.data(), hidden.data(), dy.data(), dhidden.data(), dx.data());
      back.end();
      const StepResult result = engine.step({.learning_rate = 0.01, .weight = kRows, .loss = loss});
      if (world.rank() == 0) example.losses[step] = result.loss;
    }
    std::vector<float> up(kHidden * kWidth);
    engine.read(0, StateKind::master, 0, up);
    if (world.rank() > 0) return;
    std::ranges::copy(up, example.up);
    std::ranges::copy(dx, example.dx);
  });
  return example;
}

split_example train_in_c(int ranks) {
  split_example example = {};
  example.ranks = ranks;
  EXPECT_EQ(tessera_run_ranks(ranks, 60'000, train_example, &example), TESSERA_OK) << tessera_last_error();
  return example;
}

void expect_near(const split_example& found, const split_example& expected) {
  for (int step = 0; step < EXAMPLE_STEPS; ++step)
    EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-5 * expected.losses[step]);
  for (int k = 0; k < kHidden * kWidth; ++k) EXPECT_NEAR(found.up[k], expected.up[k], 1e-5);
  for (int k = 0; k < kRows * kWidth; ++k) EXPECT_NEAR(found.dx[k], expected.dx[k], 1e-5);
}

TEST(SplitLayersExample, TrainsOnAnyNumberOfTensorRanksInBothLanguages) {
  const split_example alone = train(1);
  EXPECT_LT(alone.losses[EXAMPLE_STEPS - 1], 0.9 * alone.losses[0]);
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    expect_near(train(ranks), alone);
    expect_near(train_in_c(ranks), alone);
  }
}

}  // namespace
}  // namespace tessera::testing
