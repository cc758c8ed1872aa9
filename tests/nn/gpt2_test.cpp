// The GPT-2 modules against the float64 reference. ModelRun gives every pass exactly the bytes it asked for,
// full of NaN, so each of these tests also shows that nothing is read before it is written or written out of
// bounds.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tessera/fine_tuning.h"
#include "tests/nn/gpt2_fixture.h"

namespace tessera::testing {
namespace {

using Values = std::map<std::string, std::vector<float>>;

Values gradients_of(ModelRun& run) {
  Values values;
  for (const std::string& name : run.names()) values[name] = run.gradient(name);
  return values;
}

std::set<std::string> all_names(const ModelRun& run) {
  const std::vector<std::string> names = run.names();
  return {names.begin(), names.end()};
}

TEST(Gpt2, Fp32AgreesWithTheReference) {
  SmallGpt2 small(DType::fp32);
  expect_agreement(small, 1e-6, 3e-6);
}

TEST(Gpt2, Bf16AgreesWithTheReferenceToItsPrecision) {
  SmallGpt2 small(DType::bf16);
  expect_agreement(small, 1e-2, 3e-2);
}

TEST(Gpt2, AgreesForOtherShapes) {
  for (const BatchShape& shape : {BatchShape{1, 1}, BatchShape{1, 16}, BatchShape{5, 2}, BatchShape{6, 16}}) {
    SmallGpt2 small(DType::fp32, shape);
    if (shape.tokens() == 1) small.batch.targets = {3};
    small.load(small.batch);
    expect_agreement(small, 1e-6, 1e-5);
  }
}

TEST(Gpt2, LossScaleScalesGradientsButNotTheLoss) {
  SmallGpt2 small(DType::fp32);
  const reference::Loss loss = small.reference.accumulate(small.tokens, 1024.0);
  small.run.loss_scale = 1024.0f;
  small.run.forward(StepKind::train);
  small.run.backward();
  EXPECT_NEAR(small.run.loss, loss.sum, 1e-6 * loss.sum);
  for (const std::string& name : small.run.names())
    EXPECT_LT(relative_error(small.run.gradient(name), small.reference.parameters.at(name).gradient), 3e-6)
        << name;
}

TEST(Gpt2, TheSameBitsEveryTime) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallGpt2 small(type);
    small.run.forward(StepKind::train);
    small.run.backward();
    const Values once = gradients_of(small.run);
    const double loss = small.run.loss;
    small.run.loss = 0.0;
    small.run.forward(StepKind::train);
    small.run.backward();
    EXPECT_EQ(gradients_of(small.run), once);
    EXPECT_EQ(small.run.loss, loss);
  }
}

TEST(Gpt2, RecomputeSavesTheBitsThatForwardSaved) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallGpt2 small(type);
    expect_recompute_repeats(small.run);
  }
}

TEST(Gpt2, SelectiveRecomputeMakesTheSameBitsAndLeavesWhatIsSavedAlone) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallGpt2 small(type);
    expect_selective_recompute_repeats(small.run);
  }
}

// Forward writes every byte that it has a block save.
TEST(Gpt2, NothingSavedIsUnused) {
  SmallGpt2 small(DType::fp32);
  small.run.forward(StepKind::train);
  const std::vector<std::uint8_t> saved = small.run.kept(1, Keep::saved);
  const std::int64_t tokens = kSmallBatch.tokens();
  EXPECT_EQ(saved.size(),
            static_cast<std::size_t>(tokens * (9 * kSmallGpt2.channels + kSmallGpt2.heads) * 4));
  for (std::size_t i = 0; i < saved.size(); i += 4)
    ASSERT_FALSE(saved[i] == 0xFF && saved[i + 1] == 0xFF && saved[i + 2] == 0xFF && saved[i + 3] == 0xFF)
        << i;
}

TEST(Gpt2, BackwardLeavesWhatItReadsAlone) {
  SmallGpt2 small(DType::bf16);
  expect_backward_leaves_what_it_reads(small.run);
}

TEST(Gpt2, BetaOneAddsToEveryGradient) {
  SmallGpt2 small(DType::fp32);
  small.reference.accumulate(small.tokens);
  for (const std::string& name : small.run.names()) {
    const std::vector<float> there = lively_values("there." + name, small.run.numel(name));
    small.run.set_gradient(name, there);
    std::vector<double>& expected = small.reference.parameters.at(name).gradient;
    for (std::size_t i = 0; i < there.size(); ++i) expected[i] += there[i];
  }
  small.run.forward(StepKind::train);
  small.run.backward(all_names(small.run));
  for (const std::string& name : small.run.names())
    EXPECT_LT(relative_error(small.run.gradient(name), small.reference.parameters.at(name).gradient), 3e-6)
        << name;
}

// One parameter adds, all others overwrite NaN: no beta is taken from a neighbour.
TEST(Gpt2, EveryParameterHasItsOwnBeta) {
  SmallGpt2 small(DType::fp32);
  small.reference.accumulate(small.tokens);
  for (const std::string& adding : small.run.names()) {
    for (const std::string& name : small.run.names())
      small.run.set_gradient(name, std::vector<float>(static_cast<std::size_t>(small.run.numel(name)),
                                                      name == adding ? 1.0f : std::nanf("")));
    small.run.forward(StepKind::train);
    small.run.backward({adding});
    for (const std::string& name : small.run.names()) {
      std::vector<double> expected = small.reference.parameters.at(name).gradient;
      for (double& value : expected) value += name == adding ? 1.0 : 0.0;
      EXPECT_LT(relative_error(small.run.gradient(name), expected), 3e-6)
          << name << " while " << adding << " adds";
    }
  }
}

TEST(Gpt2, PositionsBeyondTheBatchGetNoGradient) {
  SmallGpt2 small(DType::fp32);
  small.run.forward(StepKind::train);
  small.run.backward();
  const std::vector<float> gradient = small.run.gradient("embed.position");
  for (std::size_t i = static_cast<std::size_t>(kSmallBatch.length * kSmallGpt2.channels);
       i < gradient.size(); ++i)
    ASSERT_EQ(gradient[i], 0.0f);
}

TEST(Gpt2, FrozenParametersAreLeftOutAndChangeNothingElse) {
  SmallGpt2 small(DType::fp32);
  small.run.forward(StepKind::train);
  small.run.backward();
  const Values all = gradients_of(small.run);
  for (const std::set<std::string>& frozen : {std::set<std::string>{"embed.token"},
                                              {"embed.position"},
                                              {"block.0.attention.qkv.weight"},
                                              {"block.1.mlp.down.bias"},
                                              {"block.0.norm1.gain", "block.0.norm1.bias"}}) {
    small.run.frozen = frozen;
    for (const std::string& name : frozen)
      small.run.set_gradient(name, std::vector<float>(static_cast<std::size_t>(small.run.numel(name)), 7.0f));
    small.run.forward(StepKind::train);
    small.run.backward();
    for (const auto& [name, gradient] : all)
      EXPECT_EQ(small.run.gradient(name),
                frozen.contains(name) ? std::vector<float>(gradient.size(), 7.0f) : gradient)
          << name;
  }
}

TEST(Gpt2, TwoThreadsAgreeToo) {
  SmallGpt2 small(DType::fp32);
  small.reference.accumulate(small.tokens);
  ModelRun run(make_gpt2(kSmallGpt2, DType::fp32), kSmallBatch, 2);
  for (const std::string& name : run.names()) run.set_parameter(name, small.run.parameter(name));
  std::memcpy(run.batch(), small.run.batch(), static_cast<std::size_t>(run.spec().batch_bytes));
  run.forward(StepKind::train);
  run.backward();
  for (const std::string& name : run.names())
    EXPECT_LT(relative_error(run.gradient(name), small.reference.parameters.at(name).gradient), 3e-6) << name;
}

TEST(Gpt2, EvaluationGivesTheSameLossInForward) {
  SmallGpt2 small(DType::fp32);
  const reference::Loss loss = small.reference.evaluate(small.tokens);
  small.run.forward(StepKind::evaluate);
  EXPECT_NEAR(small.run.loss, loss.sum, 1e-6 * loss.sum);
  EXPECT_EQ(small.run.weight, loss.counted);
  small.run.forward(StepKind::evaluate);
  EXPECT_NEAR(small.run.loss, 2.0 * loss.sum, 2e-6 * loss.sum);  // added, not overwritten
}

TEST(Gpt2, LogitsOfARowWhetherOrNotTargetsCount) {
  for (const bool counted : {true, false}) {
    for (const DType type : {DType::fp32, DType::bf16}) {
      SmallGpt2 small(type);
      if (!counted) std::fill(small.batch.targets.begin(), small.batch.targets.end(), -1);
      small.load(small.batch);
      const reference::Tensor expected = small.reference.logits(small.tokens);
      for (const std::int64_t row : {0L, 17L, kSmallBatch.tokens() - 1}) {
        std::vector<float> logits(61);
        small.run.logits = logits.data();
        small.run.logits_row = row;
        small.run.forward(StepKind::evaluate);
        const reference::Tensor there(expected.begin() + row * 61, expected.begin() + (row + 1) * 61);
        EXPECT_LT(relative_error(logits, there), type == DType::fp32 ? 1e-6 : 2e-2) << row;
      }
      if (!counted) {
        EXPECT_EQ(small.run.loss, 0.0);
        EXPECT_EQ(small.run.weight, 0.0);
      }
    }
  }
}

TEST(Gpt2, LogitsAreBounded) {
  constexpr BatchShape kBatch = {.sequences = 4, .length = 64};
  const auto workspace = [&](std::int64_t logits_bytes) {
    Gpt2Config config = Gpt2Config::preset("gpt2-tiny");
    config.logits_bytes = logits_bytes;
    const Model model = make_gpt2(config, DType::bf16);
    return model.modules.back()->needs(kBatch, 1).activations.workspace_bytes();
  };
  const std::int64_t row = 4 * Gpt2Config::preset("gpt2-tiny").vocabulary;
  EXPECT_GE(workspace(0) - workspace(64 * row), (kBatch.tokens() - 64) * row);
  EXPECT_THROW(workspace(-1), UsageError);
}

// In fp32 only where that differs from the gradient's type, and where there is something to add.
TEST(Gpt2, TheGradientOfTheHeadIsSummedInFp32OverChunks) {
  constexpr BatchShape kBatch = {.sequences = 4, .length = 64};
  Gpt2Config config = Gpt2Config::preset("gpt2-tiny");
  const std::int64_t row = 4 * config.vocabulary;
  const auto sum_bytes = [&](DType type, std::int64_t rows, const Target& target, bool frozen) {
    config.logits_bytes = rows * row;
    Model model = make_gpt2(config, type);
    if (frozen) model = with_frozen(std::move(model), {"embed.token"});  // which the head shares
    const UnitGraph graph = model.modules.back()->needs(kBatch, target).activations;
    for (const ValueSpec& value : graph.values)
      if (value.name == "weight.sum") return value.bytes;
    ADD_FAILURE() << "no such value";
    return std::int64_t{-1};
  };
  const std::int64_t numel = config.vocabulary * config.channels;
  const Target alone, of_two(1, DeviceType::cpu, 2);
  EXPECT_EQ(sum_bytes(DType::bf16, 64, alone, false), 4 * numel);
  EXPECT_EQ(sum_bytes(DType::bf16, 256, alone, false), 0) << "one chunk";
  EXPECT_EQ(sum_bytes(DType::fp32, 64, alone, false), 0);
  EXPECT_EQ(sum_bytes(DType::bf16, 64, alone, true), 0) << "frozen";
  EXPECT_EQ(sum_bytes(DType::bf16, 64, of_two, false), 4 * numel / 2);
  EXPECT_EQ(sum_bytes(DType::bf16, 64, of_two, true), 0);
}

TEST(Gpt2, RefusesBadTokensAndRows) {
  SmallGpt2 small(DType::fp32);
  std::vector<float> logits(61);
  small.run.logits = logits.data();
  small.run.logits_row = kSmallBatch.tokens();
  EXPECT_THROW(small.run.forward(StepKind::evaluate), UsageError);
  small.run.logits = nullptr;
  small.batch.targets[4] = 61;
  small.load(small.batch);
  small.run.forward(StepKind::train);
  EXPECT_THROW(small.run.backward(), UsageError);
  small.batch.inputs[4] = -1;
  small.load(small.batch);
  EXPECT_THROW(small.run.forward(StepKind::train), UsageError);
}

}  // namespace
}  // namespace tessera::testing
