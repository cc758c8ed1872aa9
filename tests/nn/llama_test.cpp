// The Llama modules against the float64 reference, and the reference against finite differences. ModelRun
// gives every pass exactly the bytes it asked for, full of NaN, so each of these tests also shows that
// nothing is read before it is written or written out of bounds.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tessera/layout.h"
#include "tests/nn/llama_fixture.h"

namespace tessera::testing {
namespace {

using Values = std::map<std::string, std::vector<float>>;

Values gradients_of(ModelRun& run) {
  Values values;
  for (const std::string& name : run.names()) values[name] = run.gradient(name);
  return values;
}

// ------------------------------------------------------------------ the reference

TEST(ReferenceLlama, GradientsAgreeWithFiniteDifferences) {
  for (const LlamaConfig& config : {kSmallLlama, tied_small_llama()}) {
    reference::Llama model(reference_dims(config));
    for (auto& [name, parameter] : model.parameters) {
      const std::vector<float> values =
          lively_values(name, static_cast<std::int64_t>(parameter.value.size()));
      parameter.value.assign(values.begin(), values.end());
    }
    const TokenBatch batch(kSmallBatch, config.vocabulary, 7);
    const reference::Tokens tokens = batch.view(kSmallBatch);
    model.accumulate(tokens);
    for (auto& [name, parameter] : model.parameters) {
      double largest = 0.0;
      for (double g : parameter.gradient) largest = std::max(largest, std::abs(g));
      for (std::uint64_t probe = 0; probe < 5; ++probe) {
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
}

// ------------------------------------------------------------------ the modules

TEST(Llama, Fp32AgreesWithTheReference) {
  SmallLlama small(DType::fp32);
  expect_agreement(small, 1e-6, 3e-6);
}

TEST(Llama, Fp32AgreesWhereTheHeadIsTied) {
  SmallLlama small(DType::fp32, kSmallBatch, tied_small_llama());
  expect_agreement(small, 1e-6, 3e-6);
}

TEST(Llama, Bf16AgreesWithTheReferenceToItsPrecision) {
  SmallLlama small(DType::bf16);
  expect_agreement(small, 1e-2, 3e-2);
  SmallLlama tied(DType::bf16, kSmallBatch, tied_small_llama());
  expect_agreement(tied, 1e-2, 3e-2);
}

TEST(Llama, AgreesForOtherShapesAndThreads) {
  for (const BatchShape& shape : {BatchShape{1, 1}, BatchShape{1, 16}, BatchShape{5, 2}})
    for (const int threads : {1, 2}) {
      SmallLlama small(DType::fp32, shape, kSmallLlama, threads);
      if (shape.tokens() == 1) small.batch.targets = {3};
      small.load(small.batch);
      expect_agreement(small, 1e-6, 1e-5);
    }
}

TEST(Llama, AgreesWithOneKeyHeadAndWithAsManyAsQueries) {
  for (const std::int64_t kv_heads : {1, 4}) {
    LlamaConfig config = kSmallLlama;
    config.kv_heads = kv_heads;
    SmallLlama small(DType::fp32, kSmallBatch, config);
    expect_agreement(small, 1e-6, 3e-6);
  }
}

// Without positions in the embedding, only the rotation tells tokens apart: it must reach the loss.
TEST(Llama, PositionsMatter) {
  SmallLlama small(DType::fp32);
  small.run.forward(StepKind::evaluate);
  LlamaConfig other = kSmallLlama;
  other.rope_theta = 5.0;
  SmallLlama turned(DType::fp32, kSmallBatch, other);
  turned.run.forward(StepKind::evaluate);
  EXPECT_GT(std::abs(small.run.loss - turned.run.loss), 1e-4);
}

TEST(Llama, LossScaleScalesGradientsButNotTheLoss) {
  SmallLlama small(DType::fp32);
  const reference::Loss loss = small.reference.accumulate(small.tokens, 1024.0);
  small.run.loss_scale = 1024.0f;
  small.run.forward(StepKind::train);
  small.run.backward();
  EXPECT_NEAR(small.run.loss, loss.sum, 1e-6 * loss.sum);
  expect_gradients(small, 3e-6);
}

TEST(Llama, TheSameBitsEveryTime) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallLlama small(type);
    small.run.forward(StepKind::train);
    small.run.backward();
    const Values once = gradients_of(small.run);
    small.run.forward(StepKind::train);
    small.run.backward();
    EXPECT_EQ(gradients_of(small.run), once);
  }
}

TEST(Llama, RecomputeSavesTheBitsThatForwardSaved) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallLlama small(type);
    expect_recompute_repeats(small.run);
  }
}

TEST(Llama, SelectiveRecomputeMakesTheSameBitsAndLeavesWhatIsSavedAlone) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallLlama small(type);
    expect_selective_recompute_repeats(small.run);
  }
}

TEST(Llama, BackwardLeavesWhatItReadsAlone) {
  SmallLlama small(DType::bf16);
  expect_backward_leaves_what_it_reads(small.run);
}

// One parameter adds, all others overwrite NaN: no beta is taken from a neighbour.
TEST(Llama, EveryParameterHasItsOwnBeta) {
  for (const LlamaConfig& config : {kSmallLlama, tied_small_llama()}) {
    SmallLlama small(DType::fp32, kSmallBatch, config);
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
}

TEST(Llama, FrozenParametersAreLeftOutAndChangeNothingElse) {
  SmallLlama small(DType::fp32);
  small.run.forward(StepKind::train);
  small.run.backward();
  const Values all = gradients_of(small.run);
  for (const std::string& frozen : small.run.names()) {
    small.run.frozen = {frozen};
    const std::vector<float> sevens(static_cast<std::size_t>(small.run.numel(frozen)), 7.0f);
    small.run.set_gradient(frozen, sevens);
    small.run.forward(StepKind::train);
    small.run.backward();
    for (const auto& [name, gradient] : all)
      EXPECT_EQ(small.run.gradient(name), name == frozen ? sevens : gradient) << name;
  }
}

TEST(Llama, LogitsOfARowAndTheLossOfEvaluation) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallLlama small(type);
    const reference::Tensor expected = small.reference.logits(small.tokens);
    const reference::Loss loss = small.reference.evaluate(small.tokens);
    for (const std::int64_t row : {std::int64_t{0}, std::int64_t{17}, kSmallBatch.tokens() - 1}) {
      std::vector<float> logits(61);
      small.run.logits = logits.data();
      small.run.logits_row = row;
      small.run.loss = 0.0;
      small.run.forward(StepKind::evaluate);
      const reference::Tensor there(expected.begin() + row * 61, expected.begin() + (row + 1) * 61);
      EXPECT_LT(relative_error(logits, there), type == DType::fp32 ? 1e-6 : 2e-2) << row;
      EXPECT_NEAR(small.run.loss, loss.sum, (type == DType::fp32 ? 1e-6 : 1e-2) * loss.sum);
    }
  }
}

// ------------------------------------------------------------------ what the model says about itself

TEST(LlamaPresets, HaveThePublishedNumberOfParameters) {
  const auto numel = [](std::string_view preset) {
    return make_llama(LlamaConfig::preset(preset), DType::bf16).parameter_numel();
  };
  EXPECT_EQ(numel("llama-tiny"), 9'638'784);
  EXPECT_EQ(numel("llama-160m"), 162'417'408);
  EXPECT_EQ(numel("llama-1b"), 1'235'814'400);
  EXPECT_EQ(numel("llama-3b"), 3'212'749'824);
  EXPECT_EQ(numel("llama-7b"), 6'738'415'616);
  EXPECT_EQ(numel("llama-8b"), 8'030'261'248);
  EXPECT_EQ(numel("llama-13b"), 13'015'864'320);
  EXPECT_EQ(numel("llama-70b"), 68'976'648'192);
}

TEST(LlamaPresets, CountIsThatOfTheFormula) {
  EXPECT_EQ(LlamaConfig::presets().size(), 8u);
  for (const std::string& name : LlamaConfig::presets()) {
    const LlamaConfig c = LlamaConfig::preset(name);
    const std::int64_t kv = c.channels / c.heads * c.kv_heads;
    const std::int64_t block =
        2 * c.channels * (c.channels + kv) + 3 * c.channels * c.hidden + 2 * c.channels;
    EXPECT_EQ(make_llama(c, DType::fp32).parameter_numel(),
              (c.tied ? 1 : 2) * c.vocabulary * c.channels + c.layers * block + c.channels)
        << name;
  }
}

TEST(LlamaModel, LaysOutTiedAndUntied) {
  for (const bool tied : {true, false}) {
    LlamaConfig config = LlamaConfig::preset("llama-tiny");
    config.tied = tied;
    const Model model = make_llama(config, DType::bf16);
    const Layout layout(model.units(), 4);
    EXPECT_EQ(layout.total_numel(), model.parameter_numel());
    const ParameterId head = layout.find("head.weight");
    EXPECT_EQ(layout.place(head).home, tied ? layout.find("embed.token") : head);
    for (const char* name :
         {"block.5.norm1.gain", "block.0.attention.qkv.weight", "block.0.attention.projection.weight",
          "block.0.norm2.gain", "block.0.mlp.gate_up.weight", "block.0.mlp.down.weight", "head.norm.gain"})
      EXPECT_NO_THROW(layout.find(name)) << name;
    for (const UnitSpec& unit : model.units())
      for (const ParameterSpec& spec : unit.parameters)
        EXPECT_EQ(model.groups.at(static_cast<std::size_t>(spec.group)),
                  spec.shape.size() > 1 ? "decay" : "no_decay")
            << spec.name;
  }
}

TEST(LlamaModel, InitialsAreNormalAndGainsOne) {
  for (const auto& module : make_llama(LlamaConfig::preset("llama-tiny"), DType::bf16).modules) {
    const auto specs = module->parameters();
    const auto initials = module->initials();
    ASSERT_EQ(specs.size(), initials.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const bool matrix = specs[i].shape.size() > 1;
      EXPECT_EQ(initials[i].kind, matrix ? Initial::Kind::normal : Initial::Kind::constant) << specs[i].name;
      EXPECT_EQ(initials[i].value, matrix ? 0.02 : 1.0) << specs[i].name;
    }
  }
}

// Query, key and value; attention; middle; gate and up; the log-sum-exp of every head. Nothing else.
TEST(LlamaModel, SavesWhatItSays) {
  const LlamaConfig config = LlamaConfig::preset("llama-tiny");
  const BatchShape shape = {.sequences = 2, .length = 256};
  for (const DType type : {DType::fp32, DType::bf16}) {
    const ActivationSpec spec = make_llama(config, type).activations(shape, 1);
    const std::int64_t column = 512 * bytes_of(type);
    EXPECT_EQ(spec.units[1].output_bytes, 384 * column);
    EXPECT_EQ(spec.units[1].bytes(Keep::saved), (640 + 384 + 384 + 2048) * column + 6 * 512 * 4);
    EXPECT_EQ(spec.units[1].bytes(Keep::recomputable), (384 + 384 + 1024) * column + 2 * 512 * 4);
    EXPECT_EQ(spec.units[0].bytes(Keep::saved), 0);
    EXPECT_EQ(spec.units[7].bytes(Keep::saved), 0);
  }
}

TEST(LlamaModel, CountsTheOperationsOfItsMatmuls) {
  const Model model = make_llama(
      {.vocabulary = 10, .context = 4, .layers = 1, .heads = 2, .kv_heads = 1, .channels = 8, .hidden = 20},
      DType::fp32);
  const std::vector<double> flops = model.forward_flops({.sequences = 2, .length = 3}, 1);
  const double linear = 2.0 * 6 * (8 * 16 + 8 * 8 + 8 * 40 + 20 * 8);
  const double attention = 2.0 * 2 * 2 * (1 + 2 + 3) * 8;  // sequences, scores and values, pairs
  EXPECT_EQ(flops[1], linear + attention);
  EXPECT_EQ(flops[2], 2.0 * 6 * 8 * 10);
}

TEST(LlamaModel, RefusesBadDimsByName) {
  const auto expect_refusal = [](const std::string& part, const std::function<void(LlamaConfig&)>& spoil) {
    LlamaConfig config = LlamaConfig::preset("llama-tiny");
    spoil(config);
    try {
      make_llama(config, DType::fp32);
      ADD_FAILURE() << "not refused: " << part;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  expect_refusal("vocabulary is 0", [](LlamaConfig& c) { c.vocabulary = 0; });
  expect_refusal("kv_heads is 0", [](LlamaConfig& c) { c.kv_heads = 0; });
  expect_refusal("kv_heads is 4; it must divide heads, which is 6", [](LlamaConfig& c) { c.kv_heads = 4; });
  expect_refusal("hidden is -3", [](LlamaConfig& c) { c.hidden = -3; });
  expect_refusal("channels is 390; it must be an even multiple", [](LlamaConfig& c) { c.channels = 390; });
  expect_refusal("rope_theta is 1", [](LlamaConfig& c) { c.rope_theta = 1.0; });
  expect_refusal("rope_theta is nan", [](LlamaConfig& c) { c.rope_theta = std::nan(""); });
  expect_refusal("norm_epsilon is 0", [](LlamaConfig& c) { c.norm_epsilon = 0.0; });
  expect_refusal("norm_epsilon is 1e-50", [](LlamaConfig& c) { c.norm_epsilon = 1e-50; });
  expect_refusal("rope_scaling.factor is 0.5", [](LlamaConfig& c) { c.rope_scaling.factor = 0.5; });
  expect_refusal("rope_scaling.high_frequency is 1",
                 [](LlamaConfig& c) { c.rope_scaling.high_frequency = 1.0; });
  EXPECT_THROW(make_llama(LlamaConfig::preset("llama-tiny"), DType::fp16), UnsupportedError);
  EXPECT_THROW(LlamaConfig::preset("llama-2"), UsageError);
  const Model model = make_llama(LlamaConfig::preset("llama-tiny"), DType::fp32);
  EXPECT_THROW(model.activations({.sequences = 1, .length = 257}, 1), UsageError);
}

// Ranks share a head of keys and values where there are fewer of these.
TEST(LlamaModel, RefusesHeadsThatTensorRanksCannotShare) {
  const auto message_of = [](std::int64_t heads, std::int64_t kv_heads, std::int64_t head_channels,
                             int ranks) {
    const LlamaConfig config{.vocabulary = 10,
                             .context = 64,
                             .layers = 1,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .channels = heads * head_channels,
                             .hidden = 96};
    try {
      make_llama(config, DType::fp32)
          .activations({.sequences = 1, .length = 48}, {1, DeviceType::cpu, ranks});
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message_of(6, 2, 8, 4),
            "llama: mesh.tensor is 4, but heads is 6; the tensor ranks must have equal parts of it");
  EXPECT_EQ(message_of(12, 6, 8, 4),
            "llama: mesh.tensor is 4, but kv_heads is 6; one of them must be a multiple of the other");
  EXPECT_EQ(message_of(12, 3, 8, 4),
            "llama: mesh.tensor is 4, but kv_heads is 3; one of them must be a multiple of the other");
  EXPECT_EQ(message_of(8, 2, 2, 8),
            "llama: mesh.tensor is 8 and kv_heads is 2, so 4 ranks share each head of keys and values; its "
            "channels, 2, must be a multiple of that");
  EXPECT_EQ(message_of(8, 2, 4, 8), "accepted");
  EXPECT_EQ(message_of(12, 4, 8, 4), "accepted");
}

// What a rank keeps of a block where four share a head of keys and values: queries of its heads, and all of
// that head.
TEST(LlamaModel, SavesWholeHeadsThatItShares) {
  const LlamaConfig config{
      .vocabulary = 10, .context = 16, .layers = 1, .heads = 8, .kv_heads = 2, .channels = 64, .hidden = 96};
  for (const DType type : {DType::fp32, DType::bf16}) {
    const ActivationSpec spec =
        make_llama(config, type).activations({.sequences = 2, .length = 16}, {1, DeviceType::cpu, 8});
    const std::int64_t column = 32 * bytes_of(type);
    EXPECT_EQ(spec.units[1].bytes(Keep::saved), (3 * 8 + 8 + 64 / 8 + 2 * 96 / 8) * column + 32 * 4);
    EXPECT_NO_THROW(spec.units[1].check("a block", 8));
  }
}

}  // namespace
}  // namespace tessera::testing
