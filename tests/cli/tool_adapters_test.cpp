// Fine-tuning: adapters that are made, loaded, exported and merged, frozen parameters, and factors on the
// learning rate.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/cli/weights_tool.h"
#include "tests/trainer/safetensors_file.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

class ToolAdapters : public WeightsTool {
 protected:
  void SetUp() override { set_up(3, "[mesh]\nshard = 2\n[precision]\nparameters = \"fp32\"\n"); }

  // The base model, and adapters on it that were trained for some steps.
  void make(const Arguments& model, const Arguments& lora) {
    base_ = exported(model, "base");
    adapter_ = exported(with({"model.weights=" + base_}, lora), "adapter");
  }

  void change(const json& changes) const { WeightsTool::change(adapter_ + "/adapter_config.json", changes); }

  void write_config(const json& config) const { std::ofstream(adapter_ + "/adapter_config.json") << config; }

  Result start(const Arguments& settings = {}, const Arguments& more = {}) const {
    return train(with({"model.weights=" + base_, "model.adapter=" + adapter_}, settings), more);
  }

  double validation_loss(const Arguments& settings) const {
    const Result result =
        train(with(settings, {"run.steps=0", "mesh.shard=1"}), {"--json", folder_.file("result.json")});
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(read(folder_.file("result.json"))).at("validation_loss");
  }

  const Arguments kLlama = {"model.family=llama", "model.layers=2",  "model.heads=4",   "model.kv_heads=2",
                            "model.channels=32",  "model.hidden=48", "model.context=32"};
  const Arguments kGpt2 = {"model.layers=2", "model.heads=4", "model.channels=32", "model.context=16"};
  const Arguments kLora = {"lora.rank=4", "lora.alpha=8", "schedule.learning_rate=1e-2"};
  std::string base_, adapter_;
};

TEST_F(ToolAdapters, ARunWritesWhatPeftWrites) {
  make(kLlama, with(kLora, {"lora.targets=q_proj,down_proj"}));
  const json config = json::parse(read(adapter_ + "/adapter_config.json"));
  EXPECT_EQ(config.at("peft_type"), "LORA");
  EXPECT_EQ(config.at("r"), 4);
  EXPECT_EQ(config.at("lora_alpha"), 8);
  EXPECT_EQ(config.at("target_modules"), (json{"q_proj", "down_proj"}));
  EXPECT_EQ(config.at("fan_in_fan_out"), false);
  EXPECT_EQ(config.at("base_model_name_or_path"), base_);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(adapter_), {}), 2);
  const SafetensorsFile file(adapter_ + "/adapter_model.safetensors");
  EXPECT_EQ(file.header.size(), 2 * 4 + (file.header.contains("__metadata__") ? 1u : 0u));
  const std::string layer = "base_model.model.model.layers.1.";
  EXPECT_EQ(file.header.at(layer + "self_attn.q_proj.lora_A.weight").at("shape"), (json{4, 32}));
  EXPECT_EQ(file.header.at(layer + "self_attn.q_proj.lora_B.weight").at("shape"), (json{32, 4}));
  EXPECT_EQ(file.header.at(layer + "mlp.down_proj.lora_A.weight").at("shape"), (json{4, 48}));
}

// Loaded beside its weights, and merged into them, an adapter is the same model. Without it, it is another.
TEST_F(ToolAdapters, LoadedOrMergedItIsTheSameModel) {
  for (const Arguments& model : {kLlama, kGpt2}) {
    make(model, with(kLora, {"lora.targets=all-linear"}));
    const double base = validation_loss({"model.weights=" + base_});
    const double adapted = validation_loss({"model.weights=" + base_, "model.adapter=" + adapter_});
    const std::string merged = exported({"model.weights=" + base_, "model.adapter=" + adapter_,
                                         "lora.merge=true", "run.steps=1", "schedule.learning_rate=1e-30"},
                                        "merged");
    EXPECT_GT(std::abs(base - adapted), 1e-3);
    EXPECT_NEAR(validation_loss({"model.weights=" + merged}), adapted, 1e-6);
    EXPECT_TRUE(std::filesystem::exists(merged + "/config.json"));
    EXPECT_FALSE(std::filesystem::exists(merged + "/adapter_config.json"));
  }
}

TEST_F(ToolAdapters, AdapterConfigGivesTheKeys) {
  make(kLlama, with(kLora, {"lora.targets=v_proj,o_proj"}));
  const Result result = start({"run.steps=1"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("adapter   by '" + adapter_ +
                        "/adapter_config.json': r 4, lora_alpha 8, target_modules v_proj o_proj"));
  EXPECT_THAT(result.out, HasSubstr("of which"));
  // What is written and agrees.
  // Who loads a folder with both would add the adapter twice.
  std::filesystem::copy(adapter_, folder_.file("copy"));
  entries_ = folder_.entries();
  expect_refused(start({"lora.merge=true", "run.export=" + folder_.file("copy")}),
                 {"run.export: '" + folder_.file("copy") + "' has an adapter_config.json"});
  EXPECT_EQ(start({"lora.rank=4", "lora.alpha=8", "lora.targets=o_proj,v_proj", "run.steps=1"}).status, 0);
  expect_refused(start({"lora.rank=8"}),
                 {"lora.rank is 8, but '" + adapter_ + "/adapter_config.json' has 4;"});
  expect_refused(start({"lora.alpha=4"}), {"lora.alpha is 4.0, but '", "has 8.0;"});
  expect_refused(start({"lora.targets=q_proj"}),
                 {"lora.targets is [\"q_proj\"], but '", "[\"v_proj\", \"o_proj\"]"});
  expect_refused(train({"model.adapter=" + adapter_}),
                 {"model.adapter is '" + adapter_ + "' and model.weights is empty"});
  expect_refused(train({"model.weights=" + base_, "model.adapter=" + base_}),
                 {"model.adapter: cannot read '" + base_ + "/adapter_config.json'"});
  expect_refused(start({"run.export=" + adapter_}),
                 {"run.export: '" + adapter_ + "' is read as model.adapter"});
}

TEST_F(ToolAdapters, WhatIsComputedOtherwiseIsRefusedByName) {
  make(kGpt2, kLora);
  const json kept = json::parse(read(adapter_ + "/adapter_config.json"));
  for (const auto& [changes, parts] : std::vector<std::pair<json, Arguments>>{
           {{{"use_dora", true}}, {"use_dora true"}},
           {{{"use_rslora", true}}, {"use_rslora true; supported is false"}},
           {{{"bias", "all"}}, {"bias \"all\"; supported is \"none\""}},
           {{{"modules_to_save", {"lm_head"}}}, {"modules_to_save [\"lm_head\"]"}},
           {{{"rank_pattern", {{"c_attn", 2}}}}, {"rank_pattern {\"c_attn\":2}"}},
           {{{"alpha_pattern", {{"c_attn", 2}}}}, {"alpha_pattern"}},
           {{{"layers_to_transform", {0}}}, {"layers_to_transform [0]"}},
           {{{"lora_dropout", 0.1}}, {"lora_dropout 0.1; supported is 0.0"}},
           {{{"lora_bias", true}}, {"lora_bias true"}},
           {{{"init_lora_weights", "pissa"}}, {"init_lora_weights \"pissa\""}},
           {{{"something_new", 3}}, {"something_new 3"}},
           {{{"peft_type", "IA3"}}, {"peft_type \"IA3\"; supported is \"LORA\""}},
           {{{"task_type", "SEQ_CLS"}}, {"task_type \"SEQ_CLS\""}},
           {{{"r", 0}}, {"r 0; it must be an integer from 1 to 65536"}},
           {{{"lora_alpha", "many"}}, {"lora_alpha \"many\"; it must be a number above 0"}},
           {{{"target_modules", ".*attn"}}, {"target_modules \".*attn\"; supported is a list of names"}},
           {{{"target_modules", {"q_proj"}}},
            {"target_modules of '", "has \"q_proj\", which is no linear layer in the blocks of gpt2"}},
           {{{"target_modules", {"transformer.h.0.attn.c_attn"}}},
            {"'attn.c_attn' is there for some blocks, and not for block 1"}}}) {
    change(changes);
    Arguments all = parts;
    all.push_back("model.adapter: ");
    expect_refused(start(), all);
    write_config(kept);
  }
  // As PEFT writes "all-linear" for GPT-2.
  change({{"target_modules", {"transformer.h.1.attn.c_attn", "transformer.h.0.attn.c_attn"}},
          {"lora_dropout", 0},
          {"init_lora_weights", "gaussian"},
          {"revision", "main"}});
  EXPECT_EQ(start({"run.steps=1"}).status, 0);
  // Tensors of another shape, or missing.
  change({{"r", 2}, {"target_modules", {"c_attn"}}});
  expect_refused(start(),
                 {"model.adapter: tensor 'base_model.model.transformer.h.0.attn.c_attn.lora_A.weight'",
                  "the model needs [2, 32]"});
  change({{"r", 4}, {"target_modules", {"c_attn", "c_fc"}}});
  expect_refused(start(), {"has no tensor 'base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight'"});
}

// Two parts of a run are one run, also where the adapter's folder is gone.
TEST_F(ToolAdapters, ResumesToTheBit) {
  make(kGpt2, kLora);
  const Arguments always = {"model.weights=" + base_, "model.adapter=" + adapter_, "run.steps=6",
                            "schedule.total_steps=6"};
  const std::string saved = folder_.file("saved"), whole = folder_.file("whole"),
                    parts = folder_.file("parts");
  ASSERT_EQ(train(with(always, {"run.metrics=" + whole})).status, 0);
  const Arguments saving =
      with(always, {"run.checkpoint=" + saved, "run.metrics=" + parts, "run.resume=auto"});
  ASSERT_EQ(train(with(saving, {"run.steps=3"})).status, 0);
  std::filesystem::rename(adapter_, adapter_ + ".gone");
  entries_ = folder_.entries();
  const Result second = train(saving);
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(losses(parts), losses(whole));
  // And its checkpoint is exported, as an adapter and merged.
  for (const char* merge : {"", "--merge"}) {
    const std::string out = folder_.file(std::string("out") + merge);
    Arguments arguments = {"checkpoint", "export", config_, saved, out};
    if (*merge != '\0') arguments.emplace_back(merge);
    for (const std::string& setting : always) arguments.insert(arguments.end(), {"--set", setting});
    const Result exported = run(arguments);
    EXPECT_EQ(exported.status, 0) << exported.err;
    EXPECT_EQ(std::filesystem::exists(out + "/adapter_config.json"), *merge == '\0');
    EXPECT_EQ(std::filesystem::exists(out + "/config.json"), *merge != '\0');
  }
  std::filesystem::rename(adapter_ + ".gone", adapter_);
  change({{"lora_alpha", 16}});
  entries_ = folder_.entries();
  expect_refused(train(with(saving, {"run.steps=7"})),
                 {"computes something else", "lora.alpha: 8.0 -> 16.0"});
}

TEST_F(ToolAdapters, FrozenParametersStayAsTheyAre) {
  base_ = exported(kGpt2, "base");
  const std::string tuned =
      exported({"model.weights=" + base_, "model.frozen=embed.*,block.0.*", "run.steps=2"}, "tuned");
  const SafetensorsFile before(base_ + "/model.safetensors"), after(tuned + "/model.safetensors");
  for (const auto& [name, entry] : before.header.items()) {
    if (name == "__metadata__") continue;
    const bool frozen =
        name.find("wte") != name.npos || name.find("wpe") != name.npos || name.find(".h.0.") != name.npos;
    EXPECT_EQ(before.floats(name) == after.floats(name), frozen) << name;
  }
  expect_refused(train({"model.weights=" + base_, "model.frozen=blocks.0.*"}),
                 {"model.frozen: 'blocks.0.*' matches no parameter of the model; the nearest is 'block.0."});
  expect_refused(train({"model.weights=" + base_, "model.frozen=*"}),
                 {"model.frozen: nothing would be trained"});
}

// With SGD an update is the learning rate times the gradient.
TEST_F(ToolAdapters, FactorsOnTheLearningRateAreOfTheirParameters) {
  base_ = exported(kGpt2, "base");
  const Arguments sgd = {"model.weights=" + base_,    "run.steps=1",      "optimizer.kind=sgd",
                         "optimizer.weight_decay=0",  "optimizer.clip=0", "schedule.kind=constant",
                         "schedule.learning_rate=0.5"};
  const std::string plain = exported(sgd, "plain"),
                    rated = exported(with(sgd, {"optimizer.rates=block.1.*=0.25"}), "rated");
  const SafetensorsFile before(base_ + "/model.safetensors"), one(plain + "/model.safetensors"),
      other(rated + "/model.safetensors");
  for (const auto& [name, entry] : before.header.items()) {
    if (name == "__metadata__") continue;
    const std::vector<float> from = before.floats(name), full = one.floats(name), part = other.floats(name);
    const double factor = name.find(".h.1.") != name.npos ? 0.25 : 1.0;
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(full[i]) - from[i]));
      error = std::max(error, std::abs(factor * (full[i] - from[i]) - (part[i] - from[i])));
    }
    EXPECT_GT(largest, 0.0) << name;
    EXPECT_LE(error, 1e-6) << name;
  }
  expect_refused(train(with(sgd, {"optimizer.rates=block.9.*=0.5"})),
                 {"optimizer.rates: 'block.9.*' matches no"});
  expect_refused(train(with(sgd, {"optimizer.rates=embed.*=0.5", "model.frozen=embed.*"})),
                 {"optimizer.rates: all parameters that 'embed.*' matches are frozen"});
}

// A plan holds no state and no gradient of what is frozen, to the byte.
TEST_F(ToolAdapters, PlansCountNoStatesOfFrozenParameters) {
  const auto plan = [&](const Arguments& settings) {
    Arguments arguments = {"plan", config_, "--json", folder_.file("plan.json")};
    for (const std::string& setting : with(kLlama, settings))
      arguments.insert(arguments.end(), {"--set", setting});
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(read(folder_.file("plan.json")));
  };
  const json full = plan({}), lora = plan({"lora.rank=4", "lora.targets=q_proj"});
  // A is [4, 32] and B [32, 4] in each of two blocks.
  EXPECT_EQ(lora.at("trained_numel"), 2 * 2 * 4 * 32);
  EXPECT_EQ(lora.at("parameter_numel"), full.at("parameter_numel").get<int>() + 2 * 2 * 4 * 32);
  EXPECT_EQ(full.at("trained_numel"), full.at("parameter_numel"));
}

}  // namespace
}  // namespace tessera::testing
