// Adapters of blocks against the float64 references of whole models. With adapters a layer computes what one
// with weight W + scale · B A would. So the losses are those of a reference with such weights, and the
// gradients of A and B follow from the reference's gradient of the weight.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tests/nn/gpt2_fixture.h"
#include "tests/nn/llama_fixture.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

using Row = std::vector<std::int64_t>;
// The rows of a matrix that have an adapter, by target in the order of rows: first row, count.
using Segments = std::vector<std::pair<std::int64_t, std::int64_t>>;

Model make(const Gpt2Config& config, DType type) { return make_gpt2(config, type); }
Model make(const LlamaConfig& config, DType type) { return make_llama(config, type); }

bool is_adapter(const std::string& name) { return name.ends_with(".lora_a") || name.ends_with(".lora_b"); }

// A model with adapters of lively values, and a reference with merged weights. `segments` by the name of a
// layer within its block.
template <class Config, class Reference>
struct Adapted {
  Adapted(const Config& config, DType type, std::map<std::string, Segments> of_layers,
          const BatchShape& shape = kSmallBatch)
      : batch(shape, config.vocabulary, 7),
        tokens(batch.view(shape)),
        run(make(config, type), shape),
        reference(reference_dims(config)),
        segments(std::move(of_layers)),
        rank(config.lora.rank),
        scale(config.lora.scale()) {
    for (const std::string& name : run.names()) {
      run.set_parameter(name, lively_values(name, run.numel(name)));
      if (is_adapter(name)) continue;
      const std::vector<float> rounded = run.parameter(name);
      reference.parameters.at(name).value.assign(rounded.begin(), rounded.end());
    }
    for_each([&](const std::string& layer, const std::pair<std::int64_t, std::int64_t>& rows,
                 std::int64_t a_row, std::int64_t b_row) {
      const std::vector<float> a = run.parameter(layer + ".lora_a"), b = run.parameter(layer + ".lora_b");
      reference::Tensor& weight = reference.parameters.at(layer + ".weight").value;
      const std::int64_t in = inputs(layer);
      for (std::int64_t o = 0; o < rows.second; ++o)
        for (std::int64_t i = 0; i < in; ++i)
          for (std::int64_t k = 0; k < rank; ++k)
            weight[(rows.first + o) * in + i] += scale * b[(b_row + o) * rank + k] * a[(a_row + k) * in + i];
    });
    const std::size_t bytes = batch.inputs.size() * sizeof(std::int32_t);
    std::memcpy(run.batch(), batch.inputs.data(), bytes);
    std::memcpy(static_cast<char*>(run.batch()) + bytes, batch.targets.data(), bytes);
  }

  std::int64_t inputs(const std::string& layer) {
    return run.numel(layer + ".lora_a") /
           (rank * std::ssize(segments.at(layer.substr(layer.find('.', 6) + 1))));
  }

  template <class Visit>
  void for_each(const Visit& visit) {
    for (int block = 0; block < 2; ++block)
      for (const auto& [layer, rows] : segments) {
        std::int64_t a_row = 0, b_row = 0;
        for (const auto& segment : rows) {
          visit("block." + std::to_string(block) + "." + layer, segment, a_row, b_row);
          a_row += rank;
          b_row += segment.second;
        }
      }
  }

  // dA = scale · B^T dW, and dB = scale · dW A^T.
  std::map<std::string, std::vector<double>> expected() {
    std::map<std::string, std::vector<double>> gradients;
    for_each([&](const std::string& layer, const std::pair<std::int64_t, std::int64_t>& rows,
                 std::int64_t a_row, std::int64_t b_row) {
      const std::vector<float> a = run.parameter(layer + ".lora_a"), b = run.parameter(layer + ".lora_b");
      std::vector<double>&da = gradients[layer + ".lora_a"], &db = gradients[layer + ".lora_b"];
      da.resize(a.size());
      db.resize(b.size());
      const reference::Tensor& weight = reference.parameters.at(layer + ".weight").gradient;
      const std::int64_t in = inputs(layer);
      for (std::int64_t o = 0; o < rows.second; ++o)
        for (std::int64_t i = 0; i < in; ++i)
          for (std::int64_t k = 0; k < rank; ++k) {
            const double g = scale * weight[(rows.first + o) * in + i];
            da[(a_row + k) * in + i] += g * b[(b_row + o) * rank + k];
            db[(b_row + o) * rank + k] += g * a[(a_row + k) * in + i];
          }
    });
    return gradients;
  }

  void expect_agreement(double loss_tolerance, double gradient_tolerance) {
    const reference::Loss loss = reference.accumulate(tokens);
    run.forward(StepKind::train);
    run.backward();
    EXPECT_NEAR(run.loss, loss.sum, loss_tolerance * loss.sum);
    const auto gradients = expected();
    EXPECT_EQ(gradients.size(), 4 * segments.size());
    for (const auto& [name, gradient] : gradients)
      EXPECT_LT(relative_error(run.gradient(name), gradient), gradient_tolerance) << name;
  }

  TokenBatch batch;
  reference::Tokens tokens;
  ModelRun run;
  Reference reference;
  std::map<std::string, Segments> segments;
  std::int64_t rank;
  double scale;
};

using AdaptedGpt2 = Adapted<Gpt2Config, reference::Gpt2>;
using AdaptedLlama = Adapted<LlamaConfig, reference::Llama>;

template <class Config>
Config with(Config config, std::vector<std::string> targets, std::int64_t rank = 3, double alpha = 5.0) {
  config.lora = {.rank = rank, .alpha = alpha, .targets = std::move(targets)};
  return config;
}

const std::map<std::string, Segments> kAllOfGpt2 = {{"attention.qkv", {{0, 96}}},
                                                    {"attention.projection", {{0, 32}}},
                                                    {"mlp.up", {{0, 128}}},
                                                    {"mlp.down", {{0, 32}}}};
const std::map<std::string, Segments> kAllOfLlama = {{"attention.qkv", {{0, 32}, {32, 16}, {48, 16}}},
                                                     {"attention.projection", {{0, 32}}},
                                                     {"mlp.gate_up", {{0, 44}, {44, 44}}},
                                                     {"mlp.down", {{0, 32}}}};

TEST(Lora, OnAllLayersOfGpt2AgreesWithMergedWeights) {
  AdaptedGpt2(with(kSmallGpt2, {"all-linear"}), DType::fp32, kAllOfGpt2).expect_agreement(1e-6, 3e-6);
  AdaptedGpt2(with(kSmallGpt2, {"all-linear"}), DType::bf16, kAllOfGpt2).expect_agreement(1e-2, 4e-2);
}

TEST(Lora, OnAllLayersOfLlamaAgreesWithMergedWeights) {
  AdaptedLlama(with(kSmallLlama, {"all-linear"}), DType::fp32, kAllOfLlama).expect_agreement(1e-6, 3e-6);
  AdaptedLlama(with(kSmallLlama, {"all-linear"}), DType::bf16, kAllOfLlama).expect_agreement(1e-2, 4e-2);
}

TEST(Lora, OnSomeRowsOfAMatrixLeavesTheOthersAlone) {
  AdaptedLlama(with(kSmallLlama, {"v_proj", "q_proj"}, 4, 8.0), DType::fp32,
               {{"attention.qkv", {{0, 32}, {48, 16}}}})
      .expect_agreement(1e-6, 3e-6);
  AdaptedLlama(with(kSmallLlama, {"k_proj", "up_proj"}), DType::fp32,
               {{"attention.qkv", {{32, 16}}}, {"mlp.gate_up", {{44, 44}}}})
      .expect_agreement(1e-6, 3e-6);
  AdaptedGpt2(with(kSmallGpt2, {"c_proj"}), DType::fp32,
              {{"attention.projection", {{0, 32}}}, {"mlp.down", {{0, 32}}}})
      .expect_agreement(1e-6, 3e-6);
}

TEST(Lora, OfOneLayerEach) {
  for (const auto& [target, layer] : {std::pair("c_attn", "attention.qkv"),
                                      {"attn.c_proj", "attention.projection"},
                                      {"c_fc", "mlp.up"},
                                      {"mlp.c_proj", "mlp.down"}})
    AdaptedGpt2(with(kSmallGpt2, {target}, 1), DType::fp32, {{layer, kAllOfGpt2.at(layer)}})
        .expect_agreement(1e-6, 3e-6);
}

// An adapter begins as nothing: the losses are those of the model without it, to the bit.
TEST(Lora, BeginsWithTheBitsOfTheModelWithoutIt) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallLlama plain(type);
    AdaptedLlama adapted(with(kSmallLlama, {"all-linear"}), type, kAllOfLlama);
    for (const std::string& name : adapted.run.names())
      if (name.ends_with(".lora_b"))
        adapted.run.set_parameter(name,
                                  std::vector<float>(static_cast<std::size_t>(adapted.run.numel(name))));
    plain.run.forward(StepKind::evaluate);
    adapted.run.forward(StepKind::evaluate);
    EXPECT_EQ(plain.run.loss, adapted.run.loss);
  }
}

TEST(Lora, InitialValuesAreThoseOfPeft) {
  const Model model = make_llama(with(kSmallLlama, {"q_proj", "down_proj"}), DType::fp32);
  const std::vector<ParameterSpec> specs = model.modules[1]->parameters();
  const std::vector<Initial> initials = model.modules[1]->initials();
  ASSERT_EQ(specs.size(), initials.size());
  int adapters = 0;
  for (std::size_t k = 0; k < specs.size(); ++k) {
    if (!is_adapter(specs[k].name)) continue;
    ++adapters;
    const bool is_a = specs[k].name.ends_with("a");
    EXPECT_EQ(initials[k].kind, is_a ? Initial::Kind::uniform : Initial::Kind::constant) << specs[k].name;
    const double in = static_cast<double>(specs[k].shape[1]);
    EXPECT_EQ(initials[k].value, is_a ? 1.0 / std::sqrt(in) : 0.0);
  }
  EXPECT_EQ(adapters, 4);
}

TEST(Lora, RecomputesMakeTheSameBits) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    AdaptedLlama llama(with(kSmallLlama, {"all-linear"}), type, kAllOfLlama);
    expect_recompute_repeats(llama.run);
    expect_selective_recompute_repeats(llama.run);
    expect_backward_leaves_what_it_reads(llama.run);
    AdaptedGpt2 gpt2(with(kSmallGpt2, {"c_attn"}), type, {{"attention.qkv", {{0, 96}}}});
    expect_recompute_repeats(gpt2.run);
    expect_selective_recompute_repeats(gpt2.run);
    expect_backward_leaves_what_it_reads(gpt2.run);
  }
}

// ------------------------------------------------------------------ what is trained, and what backward does

Keep keep_of(const Model& model, const std::string& value) {
  const UnitGraph graph = model.activations(kSmallBatch, 1).units[1];
  for (const ValueSpec& spec : graph.values)
    if (spec.name == value) return spec.keep;
  throw Error("no value " + value);
}

TEST(Lora, OnlyAdaptersAreTrained) {
  const Model model = make_llama(with(kSmallLlama, {"q_proj", "v_proj"}), DType::bf16);
  for (const UnitSpec& unit : model.units())
    for (const ParameterSpec& parameter : unit.parameters)
      EXPECT_EQ(parameter.trainable, is_adapter(parameter.name)) << parameter.name;
}

// Below the lowest adapter nothing runs, and no weight of another layer has a gradient.
TEST(Lora, BackwardDoesWhatAdaptersNeed) {
  const Model model = make_gpt2(with(kSmallGpt2, {"c_attn"}), DType::fp32);
  EXPECT_EQ(parts_of(model, 0, Pass::backward), std::vector<std::string>{"nothing"});
  EXPECT_TRUE(model.units()[0].read_in_forward_only);
  const std::vector<std::string> common = {"down",       "activation", "up",       "norm2",
                                           "projection", "attention",  "qkv lora", "qkv lora parameters"};
  EXPECT_EQ(parts_of(model, 1, Pass::backward), common);
  std::vector<std::string> second = common;
  second.insert(second.end(), {"qkv", "norm1"});
  EXPECT_EQ(parts_of(model, 2, Pass::backward), second);
  // What only gradients of frozen weights read is not kept.
  EXPECT_EQ(keep_of(model, "hidden"), Keep::pass);
  EXPECT_EQ(keep_of(model, "norm2"), Keep::pass);
  EXPECT_EQ(keep_of(model, "norm1"), Keep::recomputable);
  EXPECT_EQ(keep_of(model, "preactivation"), Keep::saved);
  EXPECT_EQ(keep_of(model, "attention.qkv.lora"), Keep::saved);
  EXPECT_EQ(keep_of(make_gpt2(kSmallGpt2, DType::fp32), "hidden"), Keep::recomputable);
}

// Bytes of a token that a block keeps from forward to backward.
TEST(Lora, ABlockKeepsWhatBackwardReads) {
  const auto kept = [](const Model& model) {
    const UnitGraph block = model.activations(kSmallBatch, 1).units[2];  // with adapters below it
    return (block.bytes(Keep::saved) + block.bytes(Keep::recomputable)) / kSmallBatch.tokens();
  };
  const std::int64_t channels = 32, kv = 32, hidden = 44, heads = 4;
  // qkv, attention and its log-sum-exp, the stream between the halves, the MLP's two inputs; a norm's factor.
  const std::int64_t always = 4 * (channels + kv + channels + heads + channels + 2 * hidden + 2);
  EXPECT_EQ(kept(make_llama(kSmallLlama, DType::fp32)), always + 4 * (2 * channels + hidden));
  // The input of the layer, and rank elements of each adapter.
  EXPECT_EQ(kept(make_llama(with(kSmallLlama, {"q_proj", "v_proj"}), DType::fp32)),
            always + 4 * (channels + 2 * 3));
  EXPECT_EQ(kept(make_llama(with(kSmallLlama, {"down_proj"}), DType::fp32)), always + 4 * (hidden + 3));
  EXPECT_EQ(kept(make_llama(with(kSmallLlama, {"o_proj"}), DType::fp32)), always + 4 * 3);
}

TEST(Lora, FlopsLeaveOutWhatFrozenWeightsSave) {
  const double full = make_gpt2(kSmallGpt2, DType::fp32).flops_per_token(16);
  const double lora = make_gpt2(with(kSmallGpt2, {"c_attn"}, 1), DType::fp32).flops_per_token(16);
  EXPECT_LT(lora, 0.75 * full);
  EXPECT_GT(lora, 0.60 * full);
}

TEST(Lora, WrongValuesAreRefusedByName) {
  EXPECT_EQ(refusal([] { make_llama(with(kSmallLlama, {"c_attn"}), DType::fp32); }),
            "lora.targets has \"c_attn\", which is no linear layer in the blocks of llama; there are q_proj, "
            "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, and \"all-linear\" for all");
  EXPECT_EQ(refusal([] { make_gpt2(with(kSmallGpt2, {"c_attn"}, -1), DType::fp32); }),
            "gpt2: lora.rank is -1; it must be 0, for none, to 65536");
  EXPECT_EQ(refusal([] { make_gpt2(with(kSmallGpt2, {"c_attn"}, 2, -1), DType::fp32); }),
            "gpt2: lora.alpha is -1; it must be 0, for the rank, or more");
}

}  // namespace
}  // namespace tessera::testing
