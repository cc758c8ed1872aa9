// `tessera generate`: the text of the model, the same on any mesh and of weights from anywhere; how it ends;
// and what it refuses.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

// A little Llama of bytes that has learned a bit.
class ToolGenerate : public Tool {
 protected:
  void SetUp() override {
    Tool::SetUp();
    weights_ = outputs_.file("hf");
    checkpoint_ = outputs_.file("saved");
    const Result made =
        train({"model.preset=llama-tiny", "model.heads=4", "model.kv_heads=2", "model.channels=32",
               "model.hidden=64", "model.context=32", "model.dropout=0", "model.attention_dropout=0",
               "run.steps=40", "run.length=32", "schedule.learning_rate=0.01", "schedule.total_steps=40",
               "run.export=" + weights_, "run.checkpoint=" + checkpoint_});
    ASSERT_EQ(made.status, 0) << made.err;
    entries_ = folder_.entries();
  }

  Result generate(const Arguments& more, bool with_weights = true) const {
    Arguments all = {"generate"};
    if (with_weights) all.insert(all.end(), {"--weights", weights_});
    return run(with(all, more));
  }
  std::string text_of(const Arguments& more) const {
    const Result result = generate(more);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  }

  std::string weights_, checkpoint_;
  const Arguments kGreedy = {"--prompt", "the ", "--tokens", "20", "--temperature", "0"};
};

TEST_F(ToolGenerate, TheSameTextOnEveryMesh) {
  const std::string text = text_of(kGreedy);
  EXPECT_EQ(text.size(), 20U);
  for (const Arguments& more :
       {Arguments{"--ranks", "2"}, Arguments{"--ranks", "2", "--set", "strategy.stage=3"},
        Arguments{"--set", "mesh.tensor=2"}, Arguments{"--set", "mesh.pipeline=2"},
        Arguments{"--prompt-rows", "3"}, Arguments{"--length", "32"},
        Arguments{"--set", "run.threads_per_rank=2"},
        Arguments{"--ranks", "2", "--set", "offload.parameters=host"},
        Arguments{"--set", "mesh.replicate=2", "--set", "mesh.shard=2", "--set",
                  "strategy.state_over_replicas=true", "--set", "strategy.parameters_over_replicas=true"},
        Arguments{"--set", "mesh.pipeline=2", "--set", "pipeline.schedule=zb_h1"}})
    EXPECT_EQ(text_of(with(kGreedy, more)), text) << more.back();
  const Result saved = generate(with({"--weights", checkpoint_}, kGreedy), false);
  EXPECT_EQ(saved.status, 0) << saved.err;
  EXPECT_EQ(saved.out, text);
}

// The prompt from a file gives the same; what is not text goes to the standard error.
TEST_F(ToolGenerate, TakesThePromptFromAFile) {
  const std::string prompt = "the ";
  const std::string file = outputs_.write("prompt.txt", std::as_bytes(std::span(prompt)));
  const Result result = generate({"--prompt-file", file, "--tokens", "20", "--temperature", "0"});
  EXPECT_EQ(result.out, text_of(kGreedy));
  EXPECT_THAT(result.err, HasSubstr("read      4 tokens in "));
  EXPECT_THAT(result.err, HasSubstr("made      20 tokens in "));
}

TEST_F(ToolGenerate, DrawsBySeed) {
  const auto drawn = [&](const Arguments& more) {
    return text_of(with({"--prompt", "the ", "--tokens", "24", "--temperature", "2"}, more));
  };
  EXPECT_EQ(drawn({"--seed", "5"}), drawn({"--seed", "5", "--ranks", "2"}));
  EXPECT_NE(drawn({"--seed", "5"}), drawn({"--seed", "6"}));
  EXPECT_EQ(drawn({"--top-k", "1"}), text_of({"--prompt", "the ", "--tokens", "24", "--temperature", "0"}));
  EXPECT_NE(drawn({"--top-p", "0.1"}), drawn({}));
}

TEST_F(ToolGenerate, EndsBeforeAStopWord) {
  const std::string text = text_of(kGreedy);
  const std::string stop = text.substr(6, 3);
  const std::string path = outputs_.file("result.json");
  const std::string some = text_of(with(kGreedy, {"--stop", "never", "--stop", stop, "--json", path}));
  EXPECT_EQ(some, text.substr(0, text.find(stop)));
  const json result = json::parse(read(path));
  EXPECT_EQ(result.at("ended_by"), "stop");
  EXPECT_EQ(result.at("text").get<std::string>(), some);
  EXPECT_EQ(result.at("prompt_tokens"), 4);
  EXPECT_EQ(result.at("cached_tokens"), 24);
  EXPECT_EQ(result.at("cache_bytes"), 2 * 2 * 24 * 16 * 4);
  EXPECT_EQ(result.at("gathered_bytes_per_token"), 0);
}

// The model's own end of text, as its files say; another token of theirs; none.
TEST_F(ToolGenerate, EndsAtATokenThatEndsTexts) {
  const std::string text = text_of(kGreedy), path = outputs_.file("result.json");
  const auto says = [&](const std::string& name, const json& ids) {
    const std::string content = json({{"eos_token_id", ids}}).dump();
    std::ofstream(weights_ + "/" + name) << content;
  };
  const auto ended = [&](const Arguments& more) {
    const std::string some = text_of(with(with(kGreedy, {"--json", path}), more));
    return std::pair(some, json::parse(read(path)).at("ended_by").get<std::string>());
  };
  const int last = text[9];
  const std::string until = text.substr(0, text.find(text[9]));
  says("generation_config.json", last);
  EXPECT_EQ(ended({}), std::pair(until, std::string("end")));
  says("generation_config.json", {300 % 256, 1, last});
  EXPECT_EQ(ended({}), std::pair(until, std::string("end")));
  EXPECT_EQ(ended({"--no-end"}), std::pair(text, std::string("length")));
  says("generation_config.json", nullptr);
  EXPECT_EQ(ended({}), std::pair(text, std::string("length")));
  says("generation_config.json", 99999999999);
  expect_refused(generate(kGreedy), {"eos_token_id of generation_config.json", "99999999999", "--end"});
}

// Whole parameters where they fit the budget; else a rank gathers them for every token, and it is told.
TEST_F(ToolGenerate, TellsWhatATokenGathers) {
  const std::string path = outputs_.file("result.json");
  const auto gathered = [&](const Arguments& more) {
    text_of(with(with(kGreedy, {"--json", path, "--ranks", "2"}), more));
    const json result = json::parse(read(path));
    return std::pair(result.at("gathered_bytes_per_token").get<std::int64_t>(),
                     result.at("device_bytes").get<std::int64_t>());
  };
  const auto [none, whole] = gathered({});
  EXPECT_EQ(none, 0);
  const auto [some, sharded] = gathered(
      {"--set", "strategy.prefetch=0", "--set", "run.device_memory=" + std::to_string(whole - 1000)});
  EXPECT_GT(some, 0);
  EXPECT_LT(sharded, whole);
}

TEST_F(ToolGenerate, RefusesWhatDoesNotFit) {
  const auto refused = [&](const Arguments& arguments, const Arguments& parts) {
    const Result result = generate(arguments);
    expect_refused(result, parts);
    EXPECT_EQ(result.out, "");
  };
  const std::string long_prompt(40, 'a');
  refused({"--prompt", long_prompt}, {"the prompt has 40 tokens", "context is 32"});
  refused({"--prompt", "abc", "--tokens", "30"},
          {"the prompt has 3 tokens and --tokens is 30", "--tokens 29"});
  refused({"--prompt", "abc", "--length", "33"}, {"--length is 33; the model's context is 32"});
  refused({"--prompt", "abcdef", "--length", "6"}, {"the prompt has 6 tokens, and --length is 6"});
  refused({"--prompt", "abc", "--tokens", "0"}, {"--tokens is 0"});
  refused({}, {"the prompt has no tokens"});
  refused({"--prompt", "a", "--prompt-file", "-"}, {"--prompt and --prompt-file are both given"});
  refused({"--prompt-file", "/no/file"}, {"--prompt-file: cannot read '/no/file'"});
  refused({"--prompt", "a", "--top-p", "0"}, {"top_p is 0"});
  refused({"--prompt", "a", "--top-k", "-1"}, {"top_k is -1"});
  refused({"--prompt", "a", "--temperature", "-1"}, {"temperature is -1"});
  refused({"--prompt", "a", "--stop", ""}, {"--stop is empty"});
  refused({"--prompt", "a", "--end", "<x>"}, {"--end is '<x>', which is no token"});
  EXPECT_THAT(generate({"--prompt", "a", "--set", "run.device_memory=1 KiB"}).err,
              HasSubstr("run.device_memory is 1024 bytes, but the plan needs"));
  refused({"--prompt", "a", "--set", "optimizer.beta1=0.5"}, {"optimizer.beta1"});
  const Result nothing = generate({"--prompt", "a"}, false);
  expect_refused(nothing, {"--weights"});
}

}  // namespace
}  // namespace tessera::testing
