// Dropout in the modules of both families, against the float64 references with the same elements dropped.
#include <gtest/gtest.h>

#include "tessera/error.h"
#include "tests/nn/dropout_keep.h"
#include "tests/nn/gpt2_fixture.h"
#include "tests/nn/llama_fixture.h"

namespace tessera::testing {
namespace {

constexpr std::uint64_t kKey = 0x123456789abc;
constexpr std::int64_t kFirstSequence = 7;
constexpr double kShare = 0.2, kAttentionShare = 0.3;

// As ModelRun numbers units.
reference::Keep keep_of(double share) {
  return reference_keep(share, kFirstSequence, [](std::size_t unit) { return kKey + unit; });
}

template <class Config>
Config dropping(Config config) {
  config.dropout = kShare;
  config.attention_dropout = kAttentionShare;
  return config;
}

struct Gpt2Family {
  using Small = SmallGpt2;
  static Small make(DType type, const BatchShape& shape = kSmallBatch) {
    return Small(type, shape, dropping(kSmallGpt2));
  }
};
struct LlamaFamily {
  using Small = SmallLlama;
  static Small make(DType type, const BatchShape& shape = kSmallBatch) {
    return Small(type, shape, dropping(kSmallLlama));
  }
};

template <class Small>
void set_keys(Small& small) {
  small.run.random_key = kKey;
  small.run.first_sequence = kFirstSequence;
  small.reference.keep = keep_of(kShare);
  small.reference.keep_attention = keep_of(kAttentionShare);
}

template <class Family>
class ModelDropout : public ::testing::Test {};
using Families = ::testing::Types<Gpt2Family, LlamaFamily>;
TYPED_TEST_SUITE(ModelDropout, Families);

TYPED_TEST(ModelDropout, ReferenceGradientsAgreeWithFiniteDifferences) {
  auto small = TypeParam::make(DType::fp32);
  set_keys(small);
  auto& model = small.reference;
  model.accumulate(small.tokens);
  for (auto& [name, parameter] : model.parameters)
    for (std::uint64_t probe = 0; probe < 3; ++probe) {
      const std::size_t i = permute(probe, parameter.value.size(), 3, 0);
      const double value = parameter.value[i], step = 1e-5;
      parameter.value[i] = value + step;
      const double above = model.evaluate(small.tokens).sum;
      parameter.value[i] = value - step;
      const double below = model.evaluate(small.tokens).sum;
      parameter.value[i] = value;
      EXPECT_NEAR(parameter.gradient[i], (above - below) / (2.0 * step),
                  1e-6 * std::max(1.0, std::abs(parameter.gradient[i])))
          << name << "[" << i << "]";
    }
}

TYPED_TEST(ModelDropout, AgreesWithTheReference) {
  for (const auto& [type, loss_tolerance, gradient_tolerance] :
       {std::tuple{DType::fp32, 1e-6, 1e-5}, std::tuple{DType::bf16, 1e-2, 5e-2}})
    for (const BatchShape& shape : {kSmallBatch, BatchShape{1, 16}, BatchShape{5, 2}}) {
      auto small = TypeParam::make(type, shape);
      set_keys(small);
      expect_agreement(small, loss_tolerance, gradient_tolerance);
    }
}

TYPED_TEST(ModelDropout, IsTheSameWhenRecomputed) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    auto small = TypeParam::make(type);
    set_keys(small);
    expect_recompute_repeats(small.run);
    expect_selective_recompute_repeats(small.run);
  }
}

TYPED_TEST(ModelDropout, BackwardLeavesWhatItReadsAlone) {
  auto small = TypeParam::make(DType::fp32);
  set_keys(small);
  expect_backward_leaves_what_it_reads(small.run);
  // The gradient of a unit's output is read by its own backward: what is dropped of it lies elsewhere.
  for (const std::size_t unit : {0u, 1u}) {
    const std::vector<std::uint8_t> gradient = small.run.output_gradient(unit).contents();
    small.run.backward();
    EXPECT_EQ(small.run.output_gradient(unit).contents(), gradient) << unit;
  }
}

TYPED_TEST(ModelDropout, EvaluationDropsNothing) {
  auto small = TypeParam::make(DType::fp32);
  set_keys(small);
  small.reference.keep = small.reference.keep_attention = nullptr;
  const reference::Loss loss = small.reference.evaluate(small.tokens);
  small.run.forward(StepKind::evaluate);
  EXPECT_NEAR(small.run.loss, loss.sum, 1e-6 * loss.sum);
}

TYPED_TEST(ModelDropout, EachStepAndSequenceDrawsAnew) {
  auto small = TypeParam::make(DType::fp32);
  set_keys(small);
  std::set<double> losses;
  const auto run = [&] {
    small.run.loss = 0.0;
    small.run.forward(StepKind::train);
    small.run.backward();
    losses.insert(small.run.loss);
  };
  run();
  run();
  EXPECT_EQ(losses.size(), 1u);
  small.run.random_key ^= std::uint64_t{1} << 40;
  run();
  small.run.first_sequence += 1;
  run();
  EXPECT_EQ(losses.size(), 3u);
}

TEST(ModelDropoutShares, AreRefusedByName) {
  for (const double share : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    Gpt2Config gpt2 = kSmallGpt2;
    gpt2.dropout = share;
    EXPECT_THROW(make_gpt2(gpt2, DType::fp32), UsageError);
    LlamaConfig llama = kSmallLlama;
    llama.attention_dropout = share;
    try {
      make_llama(llama, DType::fp32);
      FAIL() << share;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("llama: attention_dropout is "), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace tessera::testing
