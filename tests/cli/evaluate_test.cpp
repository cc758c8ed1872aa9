// `tessera evaluate`: the numbers of torch and transformers (golden/, made by
// benchmarks/peers/evaluate_parity.py), the same on any mesh, of weights from anywhere; and what it refuses.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kTolerance = 1e-5;

class ToolEvaluate : public Tool {
 protected:
  Result evaluate(Arguments arguments) const {
    arguments.insert(arguments.begin(), "evaluate");
    return run(arguments);
  }
  // The result of a command that must be right.
  json result_of(const Arguments& arguments) const {
    const std::string path = outputs_.file("result.json");
    const Result result = evaluate(with(arguments, {"--json", path}));
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(read(path));
  }
  std::string write(const std::string& name, const std::string& text) const {
    return outputs_.write(name, std::as_bytes(std::span(text)));
  }
  static std::string golden(const std::string& family, const std::string& name = "") {
    return std::string(TESSERA_SOURCE_DIR) + "/tests/cli/golden/evaluate_" + family +
           (name.empty() ? "" : "/" + name);
  }
  static void expect_near(const json& ours, const json& theirs) {
    for (const auto& [key, value] : theirs.items())
      EXPECT_NEAR(ours.at(key).get<double>(), value.get<double>(), kTolerance * std::abs(value.get<double>()))
          << key;
  }
  static json without_time(json result) {
    for (const char* key : {"seconds", "tokens_per_second", "configuration", "ranks"}) result.erase(key);
    return result;
  }
};

TEST_F(ToolEvaluate, MeasuresTextAsTransformersDoes) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    const json expected = json::parse(read(golden(family, "expected.json")));
    const Arguments weights = {"--weights", golden(family)};
    expect_near(result_of(with(weights, {golden(family, "text.txt")})).at("all"), expected.at("text"));
    expect_near(result_of(with(weights, {golden(family, "text.txt"), "--stride", "10"})).at("all"),
                expected.at("text_stride_10"));
    const json lines = result_of(with(weights, {golden(family, "lines.jsonl")}));
    expect_near(lines.at("all"), expected.at("lines"));
    EXPECT_EQ(lines.at("all").at("documents"), 9);
    // Two files, and all of both.
    const json both = result_of(with(weights, {golden(family, "text.txt"), golden(family, "lines.jsonl")}));
    EXPECT_EQ(both.at("files")[1].at("loss"), lines.at("all").at("loss"));
    EXPECT_EQ(both.at("all").at("counted"),
              both.at("files")[0].at("counted").get<int>() + lines.at("all").at("counted").get<int>());
  }
}

TEST_F(ToolEvaluate, ScoresChoicesAsTorchDoes) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    const json expected = json::parse(read(golden(family, "expected.json")));
    const Result told =
        evaluate({"--weights", golden(family), "--choices", golden(family, "questions.jsonl")});
    EXPECT_THAT(told.out, HasSubstr("cut       1 of 12 contexts")) << told.err;
    const json result =
        result_of({"--weights", golden(family), "--choices", golden(family, "questions.jsonl")})
            .at("files")[0];
    EXPECT_EQ(result.at("accuracy"), expected.at("accuracy"));
    EXPECT_EQ(result.at("accuracy_normalised"), expected.at("accuracy_normalised"));
    EXPECT_NE(result.at("accuracy"), result.at("accuracy_normalised")) << "the data tell them apart";
    EXPECT_EQ(result.at("contexts_cut"), 1);
    const json &ours = result.at("log_likelihoods"), &theirs = expected.at("log_likelihoods");
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t k = 0; k < ours.size(); ++k) {
      ASSERT_EQ(ours[k].size(), theirs[k].size());
      for (std::size_t c = 0; c < ours[k].size(); ++c)
        EXPECT_NEAR(ours[k][c].get<double>(), theirs[k][c].get<double>(),
                    -kTolerance * theirs[k][c].get<double>());
    }
  }
}

TEST_F(ToolEvaluate, GivesTheSameBitsOnEveryMesh) {
  const Arguments text = {"--weights", golden("llama"), golden("llama", "text.txt"),
                          golden("llama", "lines.jsonl")};
  const Arguments choices = {"--weights", golden("llama"), "--choices", golden("llama", "questions.jsonl")};
  for (const Arguments& command : {text, choices}) {
    const json alone = without_time(result_of(command));
    for (const Arguments& mesh : {Arguments{"--ranks", "3"},
                                  {"--ranks", "2", "--set", "strategy.stage=1"},
                                  {"--ranks", "2", "--set", "strategy.stage=0"},
                                  {"--ranks", "4", "--set", "mesh.replicate=2"},
                                  {"--set", "mesh.pipeline=2"},
                                  {"--set", "offload.parameters=host"}})
      EXPECT_EQ(without_time(result_of(with(command, mesh))), alone) << mesh.back();
  }
}

// What a run tells of its validation data, which are windows of the same length, is what its checkpoint
// gives.
TEST_F(ToolEvaluate, TakesTheCheckpointsOfARun) {
  const std::string text = sample_text(600).substr(0, 16 * 30 + 1);
  const std::string data = folder_.write("validation.txt", std::as_bytes(std::span(text)));
  const std::string saved = folder_.file("saved"), exported = folder_.file("hf"),
                    told = outputs_.file("train.json");
  const Result trained = train(
      {"data.validation=" + data, "data.validation_fraction=0", "run.evaluate_every=6",
       "run.evaluation_microbatches=0", "run.checkpoint=" + saved, "run.export=" + exported, "run.metrics="},
      {"--json", told});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const double expected = json::parse(read(told)).at("validation_loss");
  const Arguments window = {data, "--set", "run.sequences=2"};
  const json whole = result_of(with(window, {"--weights", saved}));
  EXPECT_NEAR(whole.at("all").at("loss").get<double>(), expected, 1e-6);
  EXPECT_EQ(whole.at("all").at("counted"), 16 * 30);
  EXPECT_EQ(whole.at("all").at("bytes"), 16 * 30 + 1);
  EXPECT_THAT(whole.at("checkpoint").get<std::string>(), HasSubstr("step-00000006"));
  // The checkpoint itself, the run's configuration, another mesh.
  const json same = without_time(whole);
  EXPECT_EQ(result_of(with(window, {"--weights", saved + "/step-00000006", "--ranks", "3"})).at("all"),
            same.at("all"));
  std::string config = read(config_);
  config.replace(config.find("[run]"), 5, "[run]\ncheckpoint = \"" + saved + "\"");
  EXPECT_EQ(result_of(with({write("saved.toml", config)}, window)).at("all"), same.at("all"));
  const std::filesystem::path around = folder_.file("around");
  std::filesystem::create_directories(around);
  std::filesystem::create_directory_symlink(std::filesystem::absolute(saved), around / "checkpoints");
  entries_ = folder_.entries();
  expect_refused(evaluate(with(window, {"--weights", around})),
                 {"--weights: '", "around' has no weights; name '", "checkpoints', which has checkpoints"});
  expect_refused(evaluate(with({config_}, with(window, {"--set", "run.checkpoint=" + saved}))),
                 {"--set run.checkpoint=", "the key matters in training only"});
  expect_refused(evaluate(with(window, {"--weights", saved, "--set", "model.channels=32"})),
                 {"model.channels is 32, but the checkpoint '", "was saved with 16"});
  // What it exported, in fp32, is the same but for the type that it computes in.
  const json of_export =
      result_of(with(window, {"--weights", exported, "--set", "precision.parameters=bf16"}));
  EXPECT_EQ(of_export.at("all"), same.at("all"));
}

TEST_F(ToolEvaluate, ReadsTokenFilesAndCompressedText) {
  const std::string tokens = outputs_.file("text.bin"), text = golden("gpt2", "text.txt");
  ASSERT_EQ(run({"tokenizer", "encode", golden("gpt2"), text, "--out", tokens}).status, 0);
  const Arguments weights = {"--weights", golden("gpt2")};
  const json of_text = result_of(with(weights, {text})).at("all");
  EXPECT_EQ(result_of(with(weights, {tokens})).at("all"), of_text);
  // Weights without a tokenizer: token files can be measured, and text cannot.
  const std::string bare = outputs_.file("bare");
  std::filesystem::create_directory(bare);
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy(golden("gpt2", name), bare + "/" + name);
  const Result told = evaluate({"--weights", bare, tokens});
  EXPECT_THAT(told.out, HasSubstr("bits per byte are left out of token files without a tokenizer"))
      << told.err;
  const json unknown = result_of({"--weights", bare, tokens}).at("all");
  EXPECT_EQ(unknown.at("loss"), of_text.at("loss"));
  EXPECT_TRUE(unknown.at("bits_per_byte").is_null());
  expect_refused(
      evaluate({"--weights", bare, text}),
      {"there is no tokenizer.json beside the weights, --weights '" + bare + "', whose vocabulary is 320",
       "--tokenizer FILE"});
  EXPECT_EQ(result_of({"--weights", bare, text, "--tokenizer", golden("gpt2")}).at("all"), of_text);
}

TEST_F(ToolEvaluate, RefusesQuestionsByTheirLine) {
  const std::string good = R"({"context": "a", "choices": ["b", "c"], "answer": 1})";
  struct Case {
    std::string line;
    Arguments parts;
  };
  for (const Case& of :
       {Case{"{\"context\"", {"is no JSON"}},
        {"[]", {"is no JSON object"}},
        {R"({"choices": ["b", "c"], "answer": 1})", {"has no field 'context'; a question has"}},
        {R"({"context": 3, "choices": ["b", "c"], "answer": 1})", {"has a field 'context' that is no text"}},
        {R"({"context": "a", "choices": ["b"], "answer": 0})", {"no list of two texts or more"}},
        {R"({"context": "a", "choices": ["b", 4], "answer": 0})", {"has a choice that is no text"}},
        {R"({"context": "a", "choices": ["b", ""], "answer": 0})", {"has a choice that is empty"}},
        {R"({"context": "a", "choices": ["b", "c"]})", {"has no field 'answer'"}},
        {R"({"context": "a", "choices": ["b", "c"], "answer": 2})",
         {"\"answer\" 2; there are 2 choices: it must be 0 to 1"}},
        {R"({"context": "a", "choices": ["b", "c"], "answer": -1})", {"\"answer\" -1"}},
        {R"({"context": "a", "choices": ["b", "c"], "answer": 0.5})",
         {"\"answer\" 0.5, which is neither an index"}},
        {R"({"context": "a", "choices": ["b", "c"], "answer": "d"})",
         {"\"answer\" \"d\", which is none of its choices"}},
        {R"({"context": "a", "choices": ["b", "b"], "answer": "b"})", {"is several of its choices"}},
        {R"({"context": "a", "choices": ["b", ")" + std::string(400, 'x') + R"("], "answer": 0})",
         {"has a choice of ", "run.length allows at most 48"}}}) {
    const std::string file = write("questions.jsonl", good + "\n\n" + of.line + "\n");
    Arguments parts = of.parts;
    parts.push_back("evaluate: line 3 of '" + file + "' ");
    expect_refused(evaluate({"--weights", golden("gpt2"), "--choices", file}), parts);
  }
  // An empty context is the token that ends texts, or begins them.
  const std::string empty = write("empty.jsonl", R"({"context": "", "choices": ["b", "c"], "answer": 1})");
  EXPECT_EQ(evaluate({"--weights", golden("gpt2"), "--choices", empty}).status, 0);
  EXPECT_EQ(evaluate({"--weights", golden("llama"), "--choices", empty}).status, 0);
}

TEST_F(ToolEvaluate, RefusesWhatMeansNothing) {
  const std::string text = golden("gpt2", "text.txt"), weights = golden("gpt2");
  expect_refused(evaluate({text}), {"nothing names the weights; give --weights DIR"});
  expect_refused(evaluate({text, "--weights", folder_.file("absent")}), {"--weights: there is nothing at '"});
  const std::filesystem::path near = folder_.file("near"), tuned = folder_.file("tuned");
  std::filesystem::create_directories(near);
  std::filesystem::create_directories(tuned);
  std::ofstream(tuned / "adapter_config.json") << "{}";
  entries_ = folder_.entries();
  expect_refused(evaluate({text, "--weights", near}), {"near' has no weights; name a Hugging Face folder"});
  expect_refused(evaluate({text, "--weights", tuned}),
                 {"tuned' has an adapter; ", "by --adapter " + tuned.string()});
  expect_refused(evaluate({text, "--weights", weights, "--stride", "49"}),
                 {"--stride is 49; it must be at most run.length, 48", "(from model.context: run.length)"});
  expect_refused(evaluate({text, "--weights", weights, "--choices", "--stride", "4"}),
                 {"--stride is given with --choices"});
  expect_refused(evaluate({text, "--weights", weights, "--set", "optimizer.clip=2"}),
                 {"--set optimizer.clip=2: the key matters in training only"});
  expect_refused(evaluate({text, "--weights", weights, "--set", "model.layers=3"}),
                 {"model.layers is 3, but '" + weights + "/config.json' has n_layer 2"});
  expect_refused(evaluate({text, "--weights", weights, "--set", "run.length=49"}),
                 {"run.length is 49; model.context allows at most 48"});
  expect_refused(evaluate({text, text, "--weights", weights}), {"is given twice"});
  expect_refused(evaluate({text, folder_.file("absent.txt"), "--weights", weights}),
                 {"absent.txt' is not there"});
  expect_refused(evaluate({config_, "--weights", weights}),
                 {"is the configuration; name a file to evaluate"});
  expect_refused(evaluate({golden("gpt2", "lines.jsonl"), "--weights", weights, "--field", "body"}),
                 {"evaluate: line 1 of '", "has no field 'body'"});
  expect_refused(evaluate({write("empty.txt", ""), "--weights", weights}), {"empty.txt' has no text"});
  expect_refused(evaluate({text, "--weights", weights, "--json", text}),
                 {"--json is '" + text + "', which is an input"});
  // A tokenizer of more tokens than the model has.
  ASSERT_EQ(run({"tokenizer", "train", text, "--vocabulary", "400", "--out", outputs_.file("tokenizer.json")})
                .status,
            0);
  expect_refused(evaluate({text, "--weights", weights, "--tokenizer", outputs_.file("tokenizer.json")}),
                 {"--tokenizer '" + outputs_.file("tokenizer.json") +
                  "' has 355 tokens and the model a vocabulary of 320"});
  // One byte has nothing to predict: that is said, and is no error.
  const Result one = evaluate({write("one.txt", "a"), "--weights", weights});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("-"));
}

}  // namespace
}  // namespace tessera::testing
