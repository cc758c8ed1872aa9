// Every field of a model that changes what it computes is told, by its modules or by its parameters.
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "tessera/model.h"

namespace tessera {
namespace {

// All that a trainer tells of the model.
std::string told(const Model& model, const BatchShape& batch = {.sequences = 2, .length = 8}) {
  std::ostringstream text;
  for (const NumericFact& fact : model.numerics(batch, 1, 7)) text << fact.what << ": " << fact.value << '\n';
  for (const UnitSpec& unit : model.units())
    for (const ParameterSpec& of : unit.parameters)
      text << of.name << to_string(of.shape) << name_of(of.dtype) << of.group << of.tied_to << '\n';
  return text.str();
}

template <class Config, class Make>
void expect_told(const Config& config, const Make& make,
                 const std::vector<std::pair<const char*, std::function<void(Config&)>>>& changes) {
  const std::string before = told(make(config));
  EXPECT_EQ(told(make(config)), before);
  EXPECT_EQ(before.find("not known"), std::string::npos) << before;
  for (const auto& [name, change] : changes) {
    Config other = config;
    change(other);
    EXPECT_NE(told(make(other)), before) << name;
  }
}

TEST(ModelNumerics, TellEveryFieldOfGpt2) {
  const Gpt2Config config{.vocabulary = 40, .context = 8, .layers = 2, .heads = 2, .channels = 16};
  expect_told<Gpt2Config>(config, [](const Gpt2Config& of) { return make_gpt2(of, DType::fp32); },
                          {{"vocabulary", [](Gpt2Config& of) { of.vocabulary = 41; }},
                           {"layers", [](Gpt2Config& of) { of.layers = 3; }},
                           {"heads", [](Gpt2Config& of) { of.heads = 4; }},
                           {"channels", [](Gpt2Config& of) { of.channels = 32; }},
                           {"logits_bytes", [](Gpt2Config& of) { of.logits_bytes = 4 * 40 * 3; }},
                           {"dropout", [](Gpt2Config& of) { of.dropout = 0.1; }},
                           {"attention_dropout", [](Gpt2Config& of) { of.attention_dropout = 0.1; }},
                           {"lora", [](Gpt2Config& of) { of.lora.rank = 2; }}});
  Gpt2Config adapted = config;
  adapted.lora.rank = 2;
  expect_told<Gpt2Config>(adapted, [](const Gpt2Config& of) { return make_gpt2(of, DType::fp32); },
                          {{"rank", [](Gpt2Config& of) { of.lora.rank = 3; }},
                           {"alpha", [](Gpt2Config& of) { of.lora.alpha = 1.0; }},
                           {"targets", [](Gpt2Config& of) { of.lora.targets = {"c_fc"}; }}});
  EXPECT_NE(told(make_gpt2(config, DType::bf16)), told(make_gpt2(config, DType::fp32)));
  EXPECT_NE(told(make_gpt2(config, DType::fp32), {.sequences = 4, .length = 4}),
            told(make_gpt2(config, DType::fp32)));
}

TEST(ModelNumerics, TellEveryFieldOfLlama) {
  const LlamaConfig config{
      .vocabulary = 40, .context = 8, .layers = 2, .heads = 4, .kv_heads = 2, .channels = 32, .hidden = 24};
  expect_told<LlamaConfig>(config, [](const LlamaConfig& of) { return make_llama(of, DType::fp32); },
                           {{"vocabulary", [](LlamaConfig& of) { of.vocabulary = 41; }},
                            {"layers", [](LlamaConfig& of) { of.layers = 3; }},
                            {"heads", [](LlamaConfig& of) { of.heads = 8; }},
                            {"kv_heads", [](LlamaConfig& of) { of.kv_heads = 4; }},
                            {"channels", [](LlamaConfig& of) { of.channels = 64; }},
                            {"hidden", [](LlamaConfig& of) { of.hidden = 25; }},
                            {"rope_theta", [](LlamaConfig& of) { of.rope_theta = 500000.0; }},
                            {"norm_epsilon", [](LlamaConfig& of) { of.norm_epsilon = 1e-6; }},
                            {"tied", [](LlamaConfig& of) { of.tied = true; }},
                            {"rope_scaling", [](LlamaConfig& of) { of.rope_scaling.factor = 8.0; }},
                            {"logits_bytes", [](LlamaConfig& of) { of.logits_bytes = 4 * 40 * 3; }},
                            {"dropout", [](LlamaConfig& of) { of.dropout = 0.1; }},
                            {"attention_dropout", [](LlamaConfig& of) { of.attention_dropout = 0.1; }}});
}

TEST(ModelNumerics, TellEveryFieldOfAnMlp) {
  expect_told<MlpConfig>({}, [](const MlpConfig& of) { return make_mlp(of, DType::fp32); },
                         {{"inputs", [](MlpConfig& of) { of.inputs = 3; }},
                          {"hidden", [](MlpConfig& of) { of.hidden = {64}; }},
                          {"classes", [](MlpConfig& of) { of.classes = 3; }}});
}

}  // namespace
}  // namespace tessera
