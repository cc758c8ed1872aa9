// The reference is only worth something if its own backward is right.
#include "tests/nn/reference_gpt2.h"

#include <gtest/gtest.h>

#include "tests/nn/gpt2_fixture.h"

namespace tessera::testing {
namespace {

reference::Gpt2 lively_reference() {
  reference::Gpt2 model(reference_dims(kSmallGpt2));
  for (auto& [name, parameter] : model.parameters) {
    const std::vector<float> values = lively_values(name, static_cast<std::int64_t>(parameter.value.size()));
    parameter.value.assign(values.begin(), values.end());
  }
  return model;
}

TEST(ReferenceGpt2, GradientsAgreeWithFiniteDifferences) {
  reference::Gpt2 model = lively_reference();
  const TokenBatch batch(kSmallBatch, kSmallGpt2.vocabulary, 7);
  const reference::Tokens tokens = batch.view(kSmallBatch);
  model.accumulate(tokens);
  for (auto& [name, parameter] : model.parameters) {
    double largest = 0.0;
    for (double g : parameter.gradient) largest = std::max(largest, std::abs(g));
    for (std::uint64_t probe = 0; probe < 6; ++probe) {
      const std::size_t i = permute(probe, parameter.value.size(), 3, 0);
      const double value = parameter.value[i], step = 1e-5;
      parameter.value[i] = value + step;
      const double above = model.evaluate(tokens).sum;
      parameter.value[i] = value - step;
      const double below = model.evaluate(tokens).sum;
      parameter.value[i] = value;
      EXPECT_NEAR(parameter.gradient[i], (above - below) / (2.0 * step), 1e-7 * std::max(1.0, largest))
          << name << "[" << i << "]";
    }
  }
}

TEST(ReferenceGpt2, LossIsThatOfTheLogits) {
  reference::Gpt2 model = lively_reference();
  const TokenBatch batch(kSmallBatch, kSmallGpt2.vocabulary, 7);
  const reference::Tensor logits = model.logits(batch.view(kSmallBatch));
  double expected = 0.0, counted = 0.0;
  for (std::size_t row = 0; row < batch.targets.size(); ++row) {
    if (batch.targets[row] < 0) continue;
    double total = 0.0;
    for (std::size_t v = 0; v < 61; ++v) total += std::exp(logits[row * 61 + v]);
    expected -= std::log(std::exp(logits[row * 61 + static_cast<std::size_t>(batch.targets[row])]) / total);
    ++counted;
  }
  const reference::Loss loss = model.evaluate(batch.view(kSmallBatch));
  EXPECT_NEAR(loss.sum, expected, 1e-10 * expected);
  EXPECT_EQ(loss.counted, counted);
  EXPECT_LT(loss.counted, static_cast<double>(batch.targets.size()));
}

// The first step of Adam moves every element by the learning rate, whatever the gradient's magnitude; decay
// comes on top, for matrices only.
TEST(ReferenceGpt2, FirstUpdateMovesByTheLearningRate) {
  reference::Gpt2 model = lively_reference();
  const TokenBatch batch(kSmallBatch, kSmallGpt2.vocabulary, 7);
  const reference::Loss loss = model.accumulate(batch.view(kSmallBatch));
  const auto before = model.parameters;
  const reference::AdamW options = {
      .learning_rate = 1e-3, .epsilon = 1e-16, .weight_decay = 0.1, .max_norm = 0.5};
  const double norm = model.update(options, loss.counted);
  EXPECT_GT(norm, 0.5);
  for (const char* name : {"block.1.mlp.up.weight", "block.1.mlp.up.bias"}) {
    const reference::Parameter& old = before.at(name);
    const double decay = std::string(name).ends_with("weight") ? 0.1 : 0.0;
    for (std::size_t i = 0; i < old.value.size(); ++i) {
      const double expected = old.value[i] * (1.0 - 1e-3 * decay) - (old.gradient[i] > 0 ? 1e-3 : -1e-3);
      ASSERT_NEAR(model.parameters.at(name).value[i], expected, 1e-9) << name << "[" << i << "]";
    }
  }
  EXPECT_EQ(model.parameters.at("embed.token").gradient[0], 0.0);
}

TEST(ReferenceGpt2, TrainingLowersTheLoss) {
  reference::Gpt2 model = lively_reference();
  const TokenBatch batch(kSmallBatch, kSmallGpt2.vocabulary, 7);
  const double before = model.evaluate(batch.view(kSmallBatch)).mean();
  for (int step = 0; step < 10; ++step)
    model.update({.learning_rate = 1e-2, .max_norm = 1.0}, model.accumulate(batch.view(kSmallBatch)).counted);
  EXPECT_LT(model.evaluate(batch.view(kSmallBatch)).mean(), 0.5 * before);
}

}  // namespace
}  // namespace tessera::testing
