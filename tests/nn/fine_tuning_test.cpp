// Frozen parameters, and factors on the learning rate, by patterns.
#include "tessera/fine_tuning.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tests/nn/gpt2_fixture.h"
#include "tests/nn/llama_fixture.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

TEST(Frozen, HaveTheGradientsOfTheOthersToTheBit) {
  const std::vector<std::string> patterns = {"embed.*", "block.0.*", "block.1.mlp.*", "head.norm.gain"};
  LlamaConfig config = kSmallLlama;
  SmallLlama all(DType::fp32, kSmallBatch, config);
  ModelRun some(with_frozen(make_llama(config, DType::fp32), patterns), kSmallBatch);
  for (const std::string& name : some.names()) some.set_parameter(name, all.run.parameter(name));
  std::memcpy(some.batch(), all.run.batch(), all.batch.inputs.size() * 8);
  for (ModelRun* run : {&all.run, &some}) {
    run->forward(StepKind::train);
    run->backward();
  }
  EXPECT_EQ(some.loss, all.run.loss);
  int trained = 0;
  for (const UnitSpec& unit : some.model().units())
    for (const ParameterSpec& parameter : unit.parameters) {
      if (!parameter.trainable) continue;
      ++trained;
      EXPECT_EQ(some.gradient(parameter.name), all.run.gradient(parameter.name)) << parameter.name;
    }
  EXPECT_EQ(trained, 5);  // two norms, two matrices of attention, the head
  for (const int unit : {0, 1})
    EXPECT_EQ(parts_of(some.model(), unit, Pass::backward), std::vector<std::string>{"nothing"});
}

TEST(Frozen, ATiedMatrixIsOne) {
  for (const char* pattern : {"embed.token", "head.weight"}) {
    const Model model = with_frozen(make_gpt2(kSmallGpt2, DType::fp32), {pattern});
    for (const UnitSpec& unit : model.units())
      for (const ParameterSpec& parameter : unit.parameters)
        EXPECT_EQ(parameter.trainable, parameter.name != "embed.token" && parameter.name != "head.weight")
            << parameter.name;
  }
}

TEST(Frozen, PatternsThatMeanNothingAreRefused) {
  const auto message = [](const std::vector<std::string>& patterns) {
    return refusal([&] { with_frozen(make_gpt2(kSmallGpt2, DType::fp32), patterns, "model.frozen"); });
  };
  EXPECT_EQ(
      message({"embed.tokens"}),
      "model.frozen: 'embed.tokens' matches no parameter of the model; the nearest is 'embed.token', and * "
      "stands for any characters");
  EXPECT_EQ(message({"embed.*", "*"}),
            "model.frozen: nothing would be trained: every parameter is frozen; leave out a pattern");
}

TEST(Frozen, PatternsMatchAsShellsDo) {
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_TRUE(matches_pattern("block.*.norm*", "block.3.norm1.gain"));
  EXPECT_TRUE(matches_pattern("*.weight", "head.weight"));
  EXPECT_FALSE(matches_pattern("block.1.*", "block.10.norm1.gain"));
  EXPECT_FALSE(matches_pattern("embed", "embed.token"));
}

TEST(RateFactors, MakeGroups) {
  const Model model = with_rate_factors(make_gpt2(kSmallGpt2, DType::fp32),
                                        {{"embed.*", 0.1}, {"block.1.*", 0.5}}, "optimizer.rates");
  EXPECT_EQ(model.groups, (std::vector<std::string>{"decay", "no_decay", "decay", "no_decay", "decay"}));
  for (const UnitSpec& unit : model.units())
    for (const ParameterSpec& parameter : unit.parameters) {
      const double factor = parameter.name.starts_with("embed.") || parameter.name == "head.weight" ? 0.1
                            : parameter.name.starts_with("block.1.")                                ? 0.5
                                                                                                    : 1.0;
      const auto group = static_cast<std::size_t>(parameter.group);
      EXPECT_EQ(model.rate_factors[group], factor) << parameter.name;
      const bool decays = parameter.shape.size() == 2;
      EXPECT_EQ(model.groups[group], decays ? "decay" : "no_decay") << parameter.name;
    }
}

TEST(RateFactors, ThatMeanNothingAreRefused) {
  const auto message = [](const std::vector<LearningRateFactor>& factors) {
    return refusal([&] {
      with_rate_factors(with_frozen(make_gpt2(kSmallGpt2, DType::fp32), {"embed.*"}), factors,
                        "optimizer.rates");
    });
  };
  EXPECT_EQ(
      message({{"block.0.*", 0.0}}),
      "optimizer.rates: 'block.0.*' has factor 0; it must be above 0 and finite; what is not trained is "
      "frozen");
  EXPECT_EQ(message({{"embed.*", 0.5}}),
            "optimizer.rates: all parameters that 'embed.*' matches are frozen, and have no learning rate");
  EXPECT_EQ(
      message({{"block.0.*", 0.5}, {"*.norm1.*", 2.0}}),
      "optimizer.rates: 'block.0.*' and '*.norm1.*' both match parameter 'block.0.norm1.bias'; make one of "
      "them narrower");
}

}  // namespace
}  // namespace tessera::testing
