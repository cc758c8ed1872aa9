// Runs on token files with masks: only what counts is in the loss, on any mesh.
#include <gmock/gmock.h>

#include "tessera/data.h"
#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

class MaskedData : public Tool {
 protected:
  // Documents of 48 tokens, whose last 16 count; with `counts` false nothing of the first ones does.
  std::string write_data(const std::string& name, int documents, int without = 0) const {
    const std::string path = outputs_.file(name);
    TokenWriter writer(path, TokenEncoding::uint16, true);
    for (int document = 0; document < documents; ++document) {
      std::vector<std::int32_t> tokens;
      for (int k = 0; k < 48; ++k) tokens.push_back((document * 13 + k * (1 + document % 5)) % 64);
      const std::size_t prompt = document < without ? 48 : 32;
      writer.append(std::span(tokens).first(prompt), false);
      writer.append(std::span(tokens).subspan(prompt));
    }
    writer.finish();
    return path;
  }
  Result train_on(const std::string& data, const std::string& metrics, const Arguments& more = {}) const {
    return train(with(
        {"data.train=" + data, "data.validation_fraction=0", "model.vocabulary=64", "mesh.shard=1",
         "model.dropout=0", "model.attention_dropout=0", "run.microbatches_per_step=6", "run.sequences=1",
         "run.microbatches=1", "precision.parameters=fp32", "run.metrics=" + outputs_.file(metrics)},
        more));
  }
};

// Samples of 16 tokens lie in a prompt as a whole, two of three: their microbatches weigh nothing.
TEST_F(MaskedData, HasTheSameLossesOnEveryMesh) {
  const std::string data = write_data("a.bin", 40);
  std::vector<std::string> alone;
  int number = 0;
  for (const Arguments& mesh : {Arguments{"mesh.shard=1"},
                                {"mesh.shard=2"},
                                {"mesh.shard=3", "strategy.stage=1"},
                                {"mesh.shard=6", "strategy.stage=0"},
                                {"mesh.shard=2", "strategy.stage=2"},
                                {"mesh.shard=4"}}) {
    const std::string metrics = "metrics" + std::to_string(number++);
    const Result result = train_on(data, metrics, mesh);
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out,
                HasSubstr("data      640 of 1,920 tokens of data.train count as targets (33.3 %)"));
    const std::vector<std::string> losses = this->losses(outputs_.file(metrics));
    ASSERT_EQ(losses.size(), 6u);
    if (alone.empty()) alone = losses;
    EXPECT_EQ(losses, alone) << mesh.front();
  }
}

TEST_F(MaskedData, IsTold) {
  (void)write_data("a0.bin", 10), (void)write_data("a1.bin", 2);
  const Result result = run({"data", "info", outputs_.file("a?.bin")});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(outputs_.file("a1.bin") + "  96 tokens"));
  EXPECT_THAT(result.out, HasSubstr("tokens      576, each of uint16"));
  EXPECT_THAT(result.out, HasSubstr("targets     192 count, by masks: 33.3 %"));
  EXPECT_THAT(result.out, HasSubstr(", of which 192 count (hash "));
  EXPECT_THAT(run({"data", "info", folder_.file("text.txt")}).out, HasSubstr("count, all"));
  expect_refused(run({"data", "info", folder_.file("absent.bin")}), {"absent.bin"});
}

// The mean is over the tokens that count, whichever microbatch they are in: an evaluation says the same.
TEST_F(MaskedData, CountsInEvaluationsAsInTheirFiles) {
  const std::string data = write_data("a.bin", 40), validation = write_data("b.bin", 10),
                    saved = outputs_.file("saved");
  const std::string told = outputs_.file("result.json");
  const Result trained =
      train_on(data, "metrics",
               {"data.validation=" + validation, "run.evaluate_every=6", "run.evaluation_microbatches=0",
                "run.checkpoint=" + saved, "mesh.shard=2"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  json last;
  for (const json& line : read_lines(outputs_.file("metrics")))
    if (line.contains("validation_loss")) last = line;
  EXPECT_EQ(last.at("validation_tokens"), 145) << "all but those of the tail that is no whole window";
  for (const char* ranks : {"1", "3"}) {
    const Result result = run({"evaluate", validation, "--weights", saved, "--ranks", ranks, "--json", told});
    ASSERT_EQ(result.status, 0) << result.err;
    const json all = json::parse(read(told)).at("all");
    EXPECT_EQ(all.at("counted"), 160);
    EXPECT_TRUE(all.at("bits_per_byte").is_null());
  }
  // Over the same windows it is the same.
  TokenWriter writer(outputs_.file("c.bin"), TokenEncoding::uint16, true);
  const TokenSource source = TokenSource::open(validation, 64);
  std::vector<std::int32_t> token(1), target(1);
  for (std::int64_t at = 0; at < 16 * 29 + 1; ++at) {
    source.read(at, token);
    source.read_targets(at, target);
    writer.append(token, target[0] != kNotCounted);
  }
  writer.finish();
  ASSERT_EQ(run({"evaluate", outputs_.file("c.bin"), "--weights", saved, "--json", told}).status, 0);
  EXPECT_NEAR(json::parse(read(told)).at("all").at("loss").get<double>(),
              last.at("validation_loss").get<double>(), 1e-6);
}

// There is no mean of nothing.
TEST_F(MaskedData, AnEvaluationWithoutTargetsHasNoLoss) {
  const Result result = train_on(write_data("a.bin", 40), "metrics",
                                 {"data.validation=" + write_data("b.bin", 2), "run.evaluate_every=6",
                                  "run.evaluation_microbatches=1", "run.microbatches_per_step=1"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("validation loss nan: no target that was read counts"));
  EXPECT_TRUE(read_lines(outputs_.file("metrics")).back().at("validation_loss").is_null());
}

// A step of which nothing counts is skipped, and changes nothing.
TEST_F(MaskedData, SkipsAStepWithoutTargets) {
  const std::string data = write_data("a.bin", 12, 12), some = write_data("b.bin", 12, 8);
  expect_refused(train_on(data, "metrics"), {"data.train: by its masks none of the 576 tokens", "counts"});
  const Result result =
      train_on(some, "metrics", {"run.microbatches_per_step=1", "run.steps=20", "mesh.shard=1"});
  ASSERT_EQ(result.status, 0) << result.err;
  int skipped = 0;
  for (const json& line : read_lines(outputs_.file("metrics")))
    skipped += line.at("applied").get<bool>() ? 0 : 1;
  EXPECT_GT(skipped, 3);
  EXPECT_LT(skipped, 20);
  EXPECT_THAT(result.out, HasSubstr(std::to_string(skipped) + " skipped"));
}

TEST_F(MaskedData, DoesNotGoWithUpdatesThatNeedTheWeightBefore) {
  expect_refused(
      train_on(write_data("a.bin", 12), "metrics", {"strategy.update=reduced", "optimizer.clip=0"}),
      {"strategy.update is \"reduced\", which needs to know a step's weight before it begins",
       "set it to \"decided\" or \"next\""});
}

// Other masks under the same name are other data.
TEST_F(MaskedData, OfARunThatGoesOnMustBeTheSame) {
  const std::string data = write_data("a.bin", 40);
  const Arguments saving = {"run.checkpoint=" + outputs_.file("saved"), "run.resume=auto"};
  ASSERT_EQ(train_on(data, "metrics", with(saving, {"run.steps=3"})).status, 0);
  (void)write_data("a.bin", 40, 5);
  expect_refused(train_on(data, "metrics", saving),
                 {"data.train, '" + data + "', has 1920 tokens in 1 file", "of which 560 count"});
}

}  // namespace
}  // namespace tessera::testing
