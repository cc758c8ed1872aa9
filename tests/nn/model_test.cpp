// What models say about themselves: parameters, names, ties, needs, and refusals.
#include "tessera/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>

#include "tessera/error.h"
#include "tessera/layout.h"
#include "tests/refusal.h"

namespace tessera {
namespace {

using testing::refusal;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A matrix product of forward, [rows, inner] · [inner, columns], and how often there is one.
struct Product {
  std::int64_t rows, inner, columns, times;
};
double flops_of(const std::vector<Product>& products) {
  double flops = 0;
  for (const auto& [rows, inner, columns, times] : products)
    flops += 2.0 * static_cast<double>(rows * inner * columns * times);
  return flops;
}

// Backward has two products for each of forward's. One sequence of 4 tokens.
TEST(FlopsPerToken, AreThoseOfTheMatrixProductsThreeTimes) {
  const Model gpt2 =
      make_gpt2({.vocabulary = 10, .context = 4, .layers = 2, .heads = 2, .channels = 6}, DType::fp32);
  EXPECT_EQ(4 * gpt2.flops_per_token(4), 3 * flops_of({{4, 6, 18, 2},     // queries, keys, values; 2 layers
                                                       {4, 3, 4, 2 * 2},  // scores, of each head
                                                       {4, 4, 3, 2 * 2},  // values, likewise
                                                       {4, 6, 6, 2},
                                                       {4, 6, 24, 2},
                                                       {4, 24, 6, 2},
                                                       {4, 6, 10, 1}}));  // logits
  // 4 heads share the keys and values of 2.
  const Model llama = make_llama(
      {.vocabulary = 10, .context = 4, .layers = 1, .heads = 4, .kv_heads = 2, .channels = 8, .hidden = 20},
      DType::bf16);
  EXPECT_EQ(4 * llama.flops_per_token(4), 3 * flops_of({{4, 8, 8 + 4 + 4, 1},
                                                        {4, 2, 4, 4},
                                                        {4, 4, 2, 4},
                                                        {4, 8, 8, 1},
                                                        {4, 8, 20 + 20, 1},
                                                        {4, 20, 8, 1},
                                                        {4, 8, 10, 1}}));
  const Model mlp = make_mlp({.inputs = 3, .hidden = {5}, .classes = 4}, DType::fp32);
  EXPECT_EQ(mlp.flops_per_token(1), 3 * flops_of({{1, 3, 5, 1}, {1, 5, 4, 1}}));
  EXPECT_TRUE(contains(refusal([&] { gpt2.flops_per_token(5); }), "length of a microbatch is 5"));
}

// 6N + 12 · layers · channels · length, with N without position embeddings, biases and norms.
TEST(FlopsPerToken, AreThoseOfThePaper) {
  const Gpt2Config config = Gpt2Config::preset("gpt2-124m");
  const double channels = 768, layers = 12;
  const double multiplied = 50257 * channels + layers * 12 * channels * channels;
  EXPECT_EQ(make_gpt2(config, DType::bf16).flops_per_token(1024),
            6 * multiplied + 12 * layers * channels * 1024);
  EXPECT_NEAR(multiplied, 124'439'808, 0.01 * 124'439'808);
}

TEST(Gpt2Presets, HaveThePublishedNumberOfParameters) {
  const auto numel = [](std::string_view preset) {
    return make_gpt2(Gpt2Config::preset(preset), DType::bf16).parameter_numel();
  };
  EXPECT_EQ(numel("gpt2-124m"), 124'439'808);
  EXPECT_EQ(numel("gpt2-355m"), 354'823'168);
  EXPECT_EQ(numel("gpt2-774m"), 774'030'080);
  EXPECT_EQ(numel("gpt2-1558m"), 1'557'611'200);
  EXPECT_EQ(numel("gpt2-tiny"), 10'844'160);
  EXPECT_EQ(numel("gpt3-175b"), 174'604'259'328);  // "175 billion"
}

TEST(Gpt2Presets, CountIsThatOfTheFormula) {
  for (const std::string& name : Gpt2Config::presets()) {
    const Gpt2Config c = Gpt2Config::preset(name);
    const std::int64_t block = 12 * c.channels * c.channels + 13 * c.channels;
    EXPECT_EQ(make_gpt2(c, DType::fp32).parameter_numel(),
              (c.vocabulary + c.context) * c.channels + c.layers * block + 2 * c.channels)
        << name;
  }
}

TEST(Gpt2Presets, UnknownNameListsTheKnownOnes) {
  const std::string message = refusal([] { Gpt2Config::preset("gpt2-125m"); });
  EXPECT_TRUE(contains(message, "'gpt2-125m'")) << message;
  for (const std::string& name : Gpt2Config::presets()) EXPECT_TRUE(contains(message, name)) << message;
}

TEST(Gpt2Model, LaysOutWithTheHeadTied) {
  const Model model = make_gpt2(Gpt2Config::preset("gpt2-tiny"), DType::bf16);
  const Layout layout(model.units(), 4);
  EXPECT_EQ(layout.total_numel(), model.parameter_numel());
  EXPECT_EQ(layout.units().front().name, "embed");
  EXPECT_EQ(layout.units()[1].name, "block.0");
  EXPECT_EQ(layout.units().back().name, "head");
  EXPECT_EQ(layout.place(layout.find("head.weight")).home, layout.find("embed.token"));
  for (const char* name : {"embed.position", "block.5.norm1.gain", "block.0.attention.qkv.weight",
                           "block.0.attention.projection.bias", "block.0.mlp.up.weight",
                           "block.0.mlp.down.bias", "head.norm.gain"})
    EXPECT_NO_THROW(layout.find(name)) << name;
}

TEST(Gpt2Model, MatricesDecayAndTheRestDoesNot) {
  const Model model = make_gpt2(Gpt2Config::preset("gpt2-tiny"), DType::fp32);
  for (const UnitSpec& unit : model.units())
    for (const ParameterSpec& spec : unit.parameters)
      EXPECT_EQ(model.groups.at(static_cast<std::size_t>(spec.group)),
                spec.shape.size() > 1 ? "decay" : "no_decay")
          << spec.name;
}

TEST(Gpt2Model, InitialsAreGpt2s) {
  const Model model = make_gpt2(Gpt2Config::preset("gpt2-124m"), DType::bf16);
  for (const auto& module : model.modules) {
    const auto specs = module->parameters();
    const auto initials = module->initials();
    ASSERT_EQ(specs.size(), initials.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::string& name = specs[i].name;
      if (!specs[i].tied_to.empty()) continue;
      const bool normal = specs[i].shape.size() > 1;
      EXPECT_EQ(initials[i].kind, normal ? Initial::Kind::normal : Initial::Kind::constant) << name;
      const bool ends_residual = contains(name, "projection") || contains(name, "down");
      const double expected = !normal         ? (contains(name, "gain") ? 1.0 : 0.0)
                              : ends_residual ? 0.02 / std::sqrt(24.0)
                                              : 0.02;
      EXPECT_DOUBLE_EQ(initials[i].value, expected) << name;
    }
  }
}

// Nine tensors of [tokens, channels] and the log-sum-exp, nothing else.
TEST(Gpt2Model, SavesWhatItSays) {
  const Gpt2Config config = Gpt2Config::preset("gpt2-tiny");
  const BatchShape shape = {.sequences = 2, .length = 256};
  for (const DType type : {DType::fp32, DType::bf16}) {
    const Model model = make_gpt2(config, type);
    const ActivationSpec spec = model.activations(shape, 1);
    ASSERT_EQ(spec.units.size(), 8u);
    const std::int64_t narrow = 512 * 384 * bytes_of(type);
    EXPECT_EQ(spec.batch_bytes, 2 * 512 * 4);
    EXPECT_EQ(spec.units[0].output_bytes, narrow);
    EXPECT_EQ(spec.units[0].bytes(Keep::saved), 0);
    EXPECT_EQ(spec.units[1].output_bytes, narrow);
    EXPECT_EQ(spec.units[1].bytes(Keep::saved), 9 * narrow + 6 * 512 * 4);
    // Both norms' outputs with mean and deviation, and GELU's.
    EXPECT_EQ(spec.units[1].bytes(Keep::recomputable), 6 * narrow + 4 * 512 * 4);
    EXPECT_EQ(spec.units[7].output_bytes, 0);
    EXPECT_EQ(spec.units[7].bytes(Keep::saved), 0);
  }
}

TEST(Gpt2Model, CountsTheOperationsOfItsMatmuls) {
  const Model model =
      make_gpt2({.vocabulary = 10, .context = 4, .layers = 1, .heads = 1, .channels = 8}, DType::fp32);
  const std::vector<double> flops = model.forward_flops({.sequences = 2, .length = 3}, 1);
  ASSERT_EQ(flops.size(), 3u);
  EXPECT_EQ(flops[0], 0.0);
  const double linear = 2.0 * 6 * (3 + 1 + 4 + 4) * 64;
  const double attention = 2.0 * 2 * 2 * (1 + 2 + 3) * 8;  // sequences, scores and values, pairs
  EXPECT_EQ(flops[1], linear + attention);
  EXPECT_EQ(flops[2], 2.0 * 6 * 8 * 10);
}

TEST(Gpt2Model, RefusesBadDimsByName) {
  const auto refusal = [](const std::function<void(Gpt2Config&)>& spoil) {
    Gpt2Config config = Gpt2Config::preset("gpt2-tiny");
    spoil(config);
    return testing::refusal([&] { make_gpt2(config, DType::fp32); });
  };
  EXPECT_TRUE(contains(refusal([](Gpt2Config& c) { c.vocabulary = 0; }), "vocabulary is 0"));
  EXPECT_TRUE(contains(refusal([](Gpt2Config& c) { c.context = -1; }), "context is -1"));
  EXPECT_TRUE(contains(refusal([](Gpt2Config& c) { c.layers = 0; }), "layers is 0"));
  EXPECT_TRUE(contains(refusal([](Gpt2Config& c) { c.heads = 0; }), "heads is 0"));
  EXPECT_TRUE(contains(refusal([](Gpt2Config& c) { c.channels = std::int64_t{1} << 40; }),
                       "channels is 1099511627776"));
  EXPECT_TRUE(contains(refusal([](Gpt2Config& c) { c.channels = 100; }), "multiple of heads, which is 6"));
  EXPECT_THROW(make_gpt2(Gpt2Config::preset("gpt2-tiny"), DType::fp16), UnsupportedError);
}

TEST(Gpt2Model, RefusesBadBatches) {
  const Model model = make_gpt2(Gpt2Config::preset("gpt2-tiny"), DType::fp32);
  const auto refusal = [&](const BatchShape& shape) {
    return testing::refusal([&] { model.activations(shape, 1); });
  };
  EXPECT_TRUE(contains(refusal({.sequences = 1, .length = 257}), "length of a microbatch is 257"));
  EXPECT_TRUE(contains(refusal({.sequences = 1, .length = 0}), "length of a microbatch is 0"));
  EXPECT_TRUE(contains(refusal({.sequences = 0, .length = 8}), "sequences of a microbatch is 0"));
}

TEST(MlpModel, RefusesBadDimsByName) {
  EXPECT_TRUE(contains(refusal([] { make_mlp({.inputs = 0}, DType::fp32); }), "inputs is 0"));
  EXPECT_TRUE(contains(refusal([] { make_mlp({.hidden = {4, 0}}, DType::fp32); }), "hidden[1] is 0"));
  EXPECT_TRUE(contains(refusal([] { make_mlp({.classes = -2}, DType::fp32); }), "classes is -2"));
  EXPECT_THROW(make_mlp({}, DType::fp16), UnsupportedError);
  const Model model = make_mlp({}, DType::fp32);
  EXPECT_TRUE(contains(refusal([&] { model.activations({.sequences = 4, .length = 2}, 1); }), "length"));
}

TEST(MlpModel, RefusesWidthsThatTensorRanksDoNotDivide) {
  const Model model = make_mlp({.inputs = 3, .hidden = {12, 5, 6}, .classes = 4}, DType::fp32);
  const auto refusal = [&](std::int64_t sequences, int ranks) {
    return testing::refusal([&] {
      model.activations({.sequences = sequences}, {1, DeviceType::cpu, ranks});
    });
  };
  EXPECT_EQ(refusal(12, 4),
            "mlp: mesh.tensor is 4, but hidden[2] is 6; the tensor ranks must have equal parts of it");
  EXPECT_EQ(refusal(12, 12), refusal(12, 4).replace(20, 1, "12"));
  EXPECT_EQ(refusal(11, 2),
            "mlp: mesh.tensor is 2, but sequences of a microbatch is 11; the tensor ranks must have equal "
            "parts of it");
  EXPECT_NO_THROW(model.activations({.sequences = 12}, {1, DeviceType::cpu, 6}));  // hidden[1] is not split
  const Model pair = make_mlp({.inputs = 3, .hidden = {10}, .classes = 4}, DType::fp32);
  EXPECT_NE(testing::refusal([&] {
              pair.modules[1]->needs({.sequences = 8}, {1, DeviceType::cpu, 4});
            }).find("mesh.tensor is 4, but hidden[0] is 10"),
            std::string::npos);
}

TEST(MlpModel, DescribesItself) {
  const Model model = make_mlp({.inputs = 3, .hidden = {5, 7}, .classes = 4}, DType::bf16);
  EXPECT_EQ(model.names, (std::vector<std::string>{"layer.0", "layer.1", "layer.2"}));
  EXPECT_EQ(model.parameter_numel(), 3 * 5 + 5 + 5 * 7 + 7 + 7 * 4);
  EXPECT_EQ(model.batch_bytes({.sequences = 30, .length = 1}), 512 + 30 * 4);  // 360 bytes of inputs, padded
  EXPECT_NO_THROW(Layout(model.units(), 2));
  for (const auto& module : model.modules) EXPECT_EQ(module->parameters().size(), module->initials().size());
}

}  // namespace
}  // namespace tessera
