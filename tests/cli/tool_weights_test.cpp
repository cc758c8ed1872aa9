// Weights of a Hugging Face folder: its config.json gives the model, and what does not agree is refused.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/cli/weights_tool.h"
#include "tests/trainer/safetensors_file.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ToolWeights : public WeightsTool {
 protected:
  void SetUp() override { set_up(2); }

  // A folder of weights, by a run of `settings`, with other values in its config.json.
  std::string folder_of(const Arguments& settings, const json& changes = json::object()) {
    std::string folder = exported(settings, "hf");
    change_config(folder, changes);
    return folder;
  }

  static void change_config(const std::string& folder, const json& changes) {
    change(folder + "/config.json", changes);
  }

  Result start_from(const std::string& weights, const Arguments& settings = {},
                    const Arguments& more = {}) const {
    return train(with({"model.weights=" + weights}, settings), more);
  }

  const Arguments kLlama = {"model.family=llama",
                            "model.layers=2",
                            "model.heads=4",
                            "model.kv_heads=2",
                            "model.channels=32",
                            "model.hidden=48",
                            "model.context=32",
                            "model.rope_theta=5000",
                            "model.rope_scaling=8",
                            "model.rope_low_freq_factor=1.5",
                            "model.rope_high_freq_factor=3",
                            "model.rope_original_context=16",
                            "model.norm_epsilon=2e-6",
                            "model.tied=true"};
  const Arguments kGpt2 = {"model.layers=2", "model.heads=4", "model.channels=32", "model.context=16"};
};

TEST_F(ToolWeights, ConfigJsonGivesTheModel) {
  for (const Arguments& model : {kLlama, kGpt2}) {
    const std::string folder = folder_of(model), again = folder_.file("again");
    const Result result =
        start_from(folder, {"run.steps=1", "schedule.total_steps=1", "run.export=" + again});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("model     by '" + folder + "/config.json': "));
    EXPECT_EQ(json::parse(read(again + "/config.json")), json::parse(read(folder + "/config.json")));
    std::filesystem::remove_all(again);
    EXPECT_EQ(start_from(folder, model).status, 0);  // what is written and agrees
    EXPECT_THAT(run({"plan", config_, "--set", "model.weights=" + folder}).out,
                HasSubstr("model     by '" + folder + "/config.json': "));
  }
}

TEST_F(ToolWeights, EveryKeyThatIsWrittenMustAgree) {
  const std::string folder = folder_of(kLlama);
  struct Case {
    const char *key, *value, *own, *theirs;
  };
  for (const Case& of :
       {Case{"layers", "3", "3", "num_hidden_layers 2"},
        {"heads", "2", "2", "num_attention_heads 4"},
        {"kv_heads", "4", "4", "num_key_value_heads 2"},
        {"channels", "64", "64", "hidden_size 32"},
        {"hidden", "64", "64", "intermediate_size 48"},
        {"vocabulary", "300", "300", "vocab_size 256"},
        {"context", "64", "64", "max_position_embeddings 32"},
        {"rope_theta", "10000", "10000.0", "rope_theta 5000.0"},
        {"rope_scaling", "4", "4.0", "rope_scaling.factor 8.0"},
        {"rope_low_freq_factor", "1", "1.0", "rope_scaling.low_freq_factor 1.5"},
        {"rope_high_freq_factor", "4", "4.0", "rope_scaling.high_freq_factor 3.0"},
        {"rope_original_context", "32", "32", "rope_scaling.original_max_position_embeddings 16"},
        {"norm_epsilon", "1e-5", "1e-05", "rms_norm_eps 2e-06"},
        {"tied", "false", "false", "tie_word_embeddings true"},
        {"family", "gpt2", "\"gpt2\"", "model_type \"llama\""}}) {
    const std::string key = std::string("model.") + of.key;
    expect_refused(start_from(folder, {key + "=" + of.value}),
                   {key + " is " + of.own + ", but '" + folder + "/config.json' has " + of.theirs + ";"});
  }
  expect_refused(start_from(folder, {"model.preset=llama-tiny"}),
                 {"model.preset is \"llama-tiny\", whose channels is 384, but '", "hidden_size 32"});
  // A value that the file gave is not told as one that the user wrote.
  expect_refused(start_from(folder, {"run.length=33"}),
                 {"run.length is 33; model.context allows at most 32 (from '" + folder +
                  "/config.json': model.context)"});
}

TEST_F(ToolWeights, WhatIsNotSupportedIsRefusedByItsName) {
  const std::string llama = folder_of(kLlama);
  const json own = json::parse(read(llama + "/config.json"));
  for (const auto& [key, value, supported] :
       {std::tuple<const char*, json, const char*>{"attention_bias", true, "supported is false"},
        {"mlp_bias", true, "supported is false"},
        {"head_dim", 16, "supported is hidden_size / num_attention_heads = 8"},
        {"hidden_act", "gelu", "supported is \"silu\""},
        {"model_type", "mistral", "supported is \"gpt2\" or \"llama\""},
        {"model_type", nullptr, "supported is \"gpt2\" or \"llama\""},
        {"num_hidden_layers", -1, "it must be an integer from 1"},
        {"num_hidden_layers", 2.5, "it must be an integer from 1"},
        {"rms_norm_eps", 0, "it must be a number above 0"},
        {"tie_word_embeddings", 1, "it must be true or false"},
        {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}, "supported is null"}}) {
    change_config(llama, {{key, value}});
    expect_refused(start_from(llama),
                   {"'" + llama + "/config.json' has " + key + " " + value.dump() + "; ", supported});
    std::ofstream(llama + "/config.json") << own;
  }
  change_config(llama, {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 2.0}}}});
  expect_refused(start_from(llama), {"has rope_scaling.low_freq_factor null; it must be a number above 0"});
  std::ofstream(llama + "/config.json") << own;
  // What means the same.
  change_config(llama,
                {{"attention_bias", nullptr}, {"mlp_bias", false}, {"head_dim", 8}, {"hidden_act", "swish"}});
  EXPECT_EQ(start_from(llama).status, 0);

  const std::string gpt2 = folder_of(kGpt2);
  change_config(gpt2, {{"n_inner", 64}});
  expect_refused(start_from(gpt2), {"has n_inner 64; supported is 4 n_embd = 128"});
  change_config(gpt2, {{"n_inner", 128}});
  EXPECT_EQ(start_from(gpt2).status, 0);
}

TEST_F(ToolWeights, WithoutConfigJsonTheUserSaysWhatNoTensorTells) {
  const std::string folder = folder_of(kLlama);
  std::filesystem::remove(folder + "/config.json");
  Arguments all = kLlama;
  const Result taken = start_from(folder, all);
  ASSERT_EQ(taken.status, 0) << taken.err;
  EXPECT_THAT(taken.out, HasSubstr("weights   there is no config.json beside '" + folder +
                                   "': not checked are model.heads 4, model.rope_theta 5000.0, "
                                   "model.rope_scaling 8.0, model.norm_epsilon 2e-06, and that"));
  std::erase(all, "model.rope_theta=5000");
  std::erase(all, "model.heads=4");
  expect_refused(start_from(folder, all),
                 {"model.weights: there is no config.json beside '" + folder +
                  "', and no tensor tells model.heads, model.rope_theta; write them"});
  // Shapes that the preset gave are told.
  const std::string gpt2 = folder_of(kGpt2);
  std::filesystem::remove(gpt2 + "/config.json");
  expect_refused(start_from(gpt2, {"model.heads=4", "model.layers=2", "model.channels=32"}),
                 {"transformer.wpe.weight",
                  "the model needs [256, 32] (from preset gpt2-tiny: "
                  "model.vocabulary, model.context)"});
  all.push_back("model.preset=llama-tiny");  // whose 6 heads do not divide the channels
  expect_refused(start_from(folder, all), {"model.channels is 32", "(from preset llama-tiny: model.heads)"});
}

TEST_F(ToolWeights, AFamilyAloneIsSaidToBeItsSmallestPreset) {
  const Result plan = run({"plan", config_, "--set", "model.family=llama"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("model     llama-tiny, the smallest preset of model.family \"llama\";"));
  EXPECT_THAT(run({"plan", config_}).out, Not(HasSubstr("smallest preset")));
}

TEST_F(ToolWeights, ValuesThatAreNotFiniteAreRefused) {
  const std::string folder = folder_of(kGpt2), file = folder + "/model.safetensors";
  SafetensorsFile stored(file);
  const json& tensor = stored.header.at("transformer.h.1.attn.c_proj.weight");
  const std::size_t begin = tensor.at("data_offsets")[0];
  const float value = -INFINITY;
  std::memcpy(stored.data.data() + begin + (3 * 32 + 5) * sizeof value, &value, sizeof value);
  stored.write(file);
  for (const char* ranks : {"1", "3"})
    expect_refused(start_from(folder, {}, {"--ranks", ranks}),
                   {"model.weights: tensor 'transformer.h.1.attn.c_proj.weight' of '" + file +
                    "' is -inf at [3, 5], element 101; weights must be finite, unless "
                    "model.allow_nonfinite_weights is true"});
  EXPECT_EQ(start_from(folder, {"model.allow_nonfinite_weights=true"}).status, 0);
}

TEST_F(ToolWeights, TheTokenizerGoesThroughARun) {
  const json ids = {{"bos_token_id", 1}, {"eos_token_id", {2, 3}}};
  const std::string folder = folder_of(kLlama, ids), saved = folder_.file("saved"), out = folder_.file("out");
  const std::string tokenizer("{\"model\": \"\0\"}", 14);
  std::ofstream(folder + "/tokenizer.json") << tokenizer;
  std::ofstream(folder + "/generation_config.json") << "{\"eos_token_id\": [2, 3]}";
  std::ofstream(folder + "/README.md") << "not handed on";
  const auto expect_whole = [&] {
    const json config = json::parse(read(out + "/config.json"));
    EXPECT_EQ(config.at("bos_token_id"), 1);
    EXPECT_EQ(config.at("eos_token_id"), json({2, 3}));
    EXPECT_FALSE(std::filesystem::exists(out + "/README.md"));
    EXPECT_EQ(read(out + "/tokenizer.json"), tokenizer);
    EXPECT_EQ(read(out + "/generation_config.json"), "{\"eos_token_id\": [2, 3]}");
    std::filesystem::remove_all(out);
  };
  const Arguments saving = {"run.checkpoint=" + saved, "schedule.total_steps=9"};
  const Result first = start_from(folder, with(saving, {"run.export=" + out}));
  ASSERT_EQ(first.status, 0) << first.err;
  expect_whole();
  std::filesystem::remove_all(folder);  // the run has its own
  const Arguments weights = {"--set", "model.weights=" + folder};
  for (const std::string& from : {saved, saved + "/step-00000002"}) {
    const Result exported = run(with({"checkpoint", "export", config_, from, out}, weights));
    ASSERT_EQ(exported.status, 0) << exported.err;
    EXPECT_THAT(exported.out, HasSubstr("tokenizer.json"));
    expect_whole();
  }
  const Result resumed =
      start_from(folder, with(saving, {"run.resume=true", "run.steps=3", "run.export=" + out}));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  expect_whole();
  // Another run that starts there has none.
  for (const char* step : {"/step-00000002", "/step-00000003", "/latest"})
    std::filesystem::remove_all(saved + step);
  ASSERT_EQ(train(with(kLlama, {"run.checkpoint=" + saved, "run.export=" + out})).status, 0);
  EXPECT_FALSE(std::filesystem::exists(saved + "/hugging_face"));
  EXPECT_FALSE(std::filesystem::exists(out + "/tokenizer.json"));
}

// A run from nothing has that of its data, if data prepare made them; weights that have one keep theirs.
TEST_F(ToolWeights, TheTokenizerOfPreparedDataGoesThroughARun) {
  const std::string data = folder_.file("data"), saved = folder_.file("saved"), out = folder_.file("out");
  std::filesystem::create_directories(data);
  std::filesystem::copy_file(folder_.file("text.txt"), data + "/train_00000.txt");
  std::ofstream(data + "/tokenizer.json") << "{\"model\": 1}";
  const Arguments of = with(kLlama, {"data.train=" + data + "/train_*.txt", "run.export=" + out});
  ASSERT_EQ(train(of).status, 0);
  EXPECT_FALSE(std::filesystem::exists(out + "/tokenizer.json"));  // nobody says whose it is
  std::filesystem::remove_all(out);
  std::ofstream(data + "/data.json") << "{}";
  ASSERT_EQ(train(with(of, {"run.checkpoint=" + saved})).status, 0);
  EXPECT_EQ(read(out + "/tokenizer.json"), "{\"model\": 1}");
  EXPECT_EQ(read(saved + "/hugging_face/tokenizer.json"), "{\"model\": 1}");

  std::ofstream(data + "/tokenizer.json") << "{\"model\": 2}";
  const std::string again = folder_.file("again");
  ASSERT_EQ(start_from(out, {"data.train=" + data + "/train_*.txt", "run.export=" + again}).status, 0);
  EXPECT_EQ(read(again + "/tokenizer.json"), "{\"model\": 1}");
}

TEST_F(ToolWeights, NoStepsIsAnEvaluation) {
  const std::string folder = folder_of(kGpt2), saved = folder_.file("saved"), result = folder_.file("json");
  const auto loss_of = [&](const Result& run) {
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("no step was trained: run.steps is 0, and the run only evaluates"));
    const json written = json::parse(read(result));
    EXPECT_TRUE(written.at("loss").is_null());
    return written.at("validation_loss").get<double>();
  };
  const Arguments only = {"run.steps=0"}, more = {"--json", result};
  const double of_weights = loss_of(start_from(folder, only, more));
  EXPECT_NEAR(of_weights, std::log(256.0), 1.0);
  // The loss that a run of steps sees at its end.
  const Result trained = start_from(folder, {"run.evaluate_every=2", "run.checkpoint=" + saved}, more);
  ASSERT_EQ(trained.status, 0) << trained.err;
  const double at_end = json::parse(read(result)).at("validation_loss");
  EXPECT_NE(at_end, of_weights);
  const std::string metrics = folder_.file("metrics");
  const Arguments resumes = with(
      only, {"run.checkpoint=" + saved, "run.resume=true", "run.metrics=" + metrics, "run.evaluate_every=0"});
  EXPECT_EQ(loss_of(start_from(folder, resumes, more)), at_end);
  EXPECT_EQ(read_lines(metrics).size(), 1u);
  EXPECT_EQ(read_lines(metrics).at(0).at("validation_loss"), at_end);
  // Nothing is saved, and no data to train on are needed.
  EXPECT_FALSE(std::filesystem::exists(saved + "/step-00000000"));
  const Result alone =
      start_from(folder, with(only, {"data.train=", "data.validation=" + folder_.file("text.txt")}), more);
  EXPECT_NEAR(loss_of(alone), of_weights, 0.5);
  EXPECT_THAT(train(only).out, HasSubstr("weights   as drawn by run.seed"));
}

// Rows behind the vocabulary are in no file, and change no bit of what is trained.
TEST_F(ToolWeights, AVocabularyIsPaddedAndCutAgain) {
  Arguments untied = kLlama;
  untied.back() = "model.tied=false";
  for (const auto& [model, tables] : {std::pair(kGpt2, 1), {kLlama, 1}, {untied, 2}}) {
    const std::string folder = folder_of(with(model, {"model.vocabulary=301"}));
    const auto trained = [&](int multiple) {
      const std::string metrics = folder_.file("metrics"), out = folder_.file("out");
      const Result result =
          start_from(folder,
                     {"model.pad_vocabulary_to=" + std::to_string(multiple), "optimizer.clip=0",
                      "run.steps=4", "run.evaluate_every=2", "run.metrics=" + metrics, "run.export=" + out},
                     {"--json", folder_.file("json")});
      EXPECT_EQ(result.status, 0) << result.err;
      std::vector<std::string> all = losses(metrics);
      all.push_back(read(out + "/model.safetensors"));
      all.push_back(read(out + "/config.json"));
      return std::pair(all, json::parse(read(folder_.file("json"))).at("parameter_numel").get<int>());
    };
    const auto [plain, numel] = trained(1);
    for (const auto& [multiple, rows] : {std::pair(64, 19), {512, 211}}) {
      const auto [padded, padded_numel] = trained(multiple);
      EXPECT_TRUE(padded == plain) << multiple;
      EXPECT_EQ(padded_numel, numel + tables * rows * 32);
    }
  }
}

// On meshes, padding joins that of the cut over tensor ranks, one of which has no token here.
TEST_F(ToolWeights, APaddedVocabularyIsCutOverRanks) {
  const std::string folder = folder_of(with(kLlama, {"model.vocabulary=301"}));
  const auto losses_of = [&](const Arguments& settings) {
    const std::string metrics = folder_.file("metrics");
    const Result result = start_from(
        folder,
        with(settings, {"precision.parameters=fp32", "optimizer.clip=0", "run.steps=3",
                        "run.microbatches_per_step=2", "run.metrics=" + metrics, "run.evaluate_every=3",
                        "run.evaluation_microbatches=0", "run.sample_tokens=3"}));
    EXPECT_EQ(result.status, 0) << result.err;
    std::vector<double> all;
    for (const json& line : read_lines(metrics))
      all.push_back(line.contains("loss") ? line.at("loss") : line.at("validation_loss"));
    return all;
  };
  const std::vector<double> plain = losses_of({});
  for (const Arguments& mesh :
       {Arguments{"model.pad_vocabulary_to=64", "mesh.shard=2"},
        Arguments{"model.pad_vocabulary_to=64", "mesh.tensor=2"},
        Arguments{"model.pad_vocabulary_to=1024", "mesh.tensor=2", "strategy.sequence_parallel=false"},
        Arguments{"model.pad_vocabulary_to=1024", "numerics.tensor_blocks=2"}}) {
    const std::vector<double> padded = losses_of(mesh);
    ASSERT_EQ(padded.size(), plain.size()) << mesh.front();
    for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_NEAR(padded[k], plain[k], 1e-5) << mesh.front();
  }
}

}  // namespace
}  // namespace tessera::testing
