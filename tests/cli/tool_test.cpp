// What the tool does, with small models on the CPU.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <set>
#include <thread>

#include "tessera/data.h"
#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

TEST_F(Tool, Trains) {
  const Result result = train({"run.metrics=" + folder_.file("metrics"), "run.trace=" + folder_.file("trace"),
                               "run.sample_tokens=20", "run.evaluate_every=3"},
                              {"--json", folder_.file("json")});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"step 6/6", "tokens/s", "measured", "predicted", "gathered parameters",
                           "sample:", "hidden", "validation loss", "FLOP/s of the model\n"})
    EXPECT_NE(result.out.find(part), std::string::npos) << "'" << part << "' is not in: " << result.out;
  EXPECT_EQ(result.out.find('\r'), std::string::npos) << "no bar in a file";

  const json summary = json::parse(read(folder_.file("json")));
  EXPECT_EQ(summary.at("steps"), 6);
  EXPECT_EQ(summary.at("ranks"), 2);
  EXPECT_EQ(summary.at("tokens"), 6 * 2 * 2 * 2 * 16);
  EXPECT_LT(summary.at("loss"), summary.at("first_loss"));
  EXPECT_NEAR(summary.at("first_loss"), std::log(256.0), 0.5);
  EXPECT_GT(summary.at("memory").at("measured_bytes"), 0);
  EXPECT_EQ(summary.at("memory").at("predicted_bytes"),
            2 * summary.at("memory").at("predicted").at("arena_bytes").get<std::int64_t>());
  EXPECT_EQ(summary.count("model_flops_utilisation"), 0u) << "the CPU's peak is not known";
  EXPECT_DOUBLE_EQ(summary.at("model_flops_per_second"), summary.at("model_flops_per_token").get<double>() *
                                                             summary.at("tokens_per_second").get<double>());
  EXPECT_GE(summary.at("hidden"), 0.0);
  EXPECT_LE(summary.at("hidden"), 1.0);
  // What is said of the time fits together.
  EXPECT_DOUBLE_EQ(
      summary.at("tokens_per_second").get<double>() * summary.at("training_seconds").get<double>(),
      summary.at("tokens"));
  EXPECT_LT(summary.at("training_seconds"), summary.at("seconds"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex(
                              "768 tokens in 6 steps and 0[.][0-9]+ s of training [(][0-9.]+ s in all[)]: "));
  EXPECT_EQ(summary.at("sample").get<std::string>().rfind("The ", 0), 0u);

  const std::vector<json> lines = read_lines(folder_.file("metrics"));
  EXPECT_EQ(lines.size(), 6u + 2u);
  EXPECT_EQ(lines.back().count("validation_loss"), 1u);
  EXPECT_EQ(lines.at(0).at("step"), 1);
  EXPECT_EQ(lines.at(0).at("loss"), summary.at("first_loss"));
  const json trace = json::parse(read(folder_.file("trace")));
  EXPECT_GT(trace.at("traceEvents").size(), 20u);
  EXPECT_EQ(folder_.entries(), entries_ + 3);
}

// It gathers from nobody; what it copies to the host and back may hide.
TEST_F(Tool, ARankAloneHidesNoCommunication) {
  const auto told = [&](const Arguments& settings) {
    Arguments all = {"mesh.shard=1", "run.metrics=" + folder_.file("metrics")};
    all.insert(all.end(), settings.begin(), settings.end());
    const Result result = train(all, {"--json", folder_.file("json")});
    EXPECT_EQ(result.status, 0) << result.err;
    const bool summed = json::parse(read(folder_.file("json"))).contains("hidden");
    const auto lines = read_lines(folder_.file("metrics"));
    EXPECT_EQ(std::ranges::any_of(lines, [](const json& line) { return line.contains("hidden"); }), summed);
    EXPECT_TRUE(std::ranges::any_of(lines, [](const json& line) { return line.contains("issued"); }));
    return std::pair(summed, result.out);
  };
  const auto [alone, out] = told({});
  EXPECT_FALSE(alone);
  EXPECT_THAT(out, ::testing::Not(::testing::HasSubstr("hidden")));
  const auto [copies, with_copies] = told({"offload.states=host"});
  EXPECT_TRUE(copies);
  EXPECT_THAT(with_copies, ::testing::HasSubstr("of communication and copies hidden behind compute"));
}

// Which is a file here: all that is written there stands behind what was printed before.
TEST_F(Tool, WritesToTheStandardOutput) {
  const Result result =
      train({"run.metrics=/dev/stdout", "run.trace=/dev/stdout"}, {"--json", "/dev/stdout"});
  ASSERT_EQ(result.status, 0) << result.err;
  std::vector<json> found;
  std::string text;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("{\"applied\"")) found.push_back(json::parse(line));
    text += line + "\n";
  }
  EXPECT_EQ(std::ranges::count_if(found, [](const json& line) { return line.contains("loss"); }), 6);
  EXPECT_EQ(text.find("10,944 parameters"), 0U) << text;
  const std::size_t summary = text.rfind("\n{\n");
  ASSERT_NE(summary, std::string::npos) << text;
  EXPECT_EQ(json::parse(text.substr(summary)).at("steps"), 6);
  const Result info = run({"info", "--json", "/dev/stdout"});
  ASSERT_EQ(info.status, 0) << info.err;
  EXPECT_TRUE(json::parse(info.out.substr(info.out.find("\n{\n"))).is_object()) << info.out;
}

TEST_F(Tool, SamplesWhatIsNoByte) {
  const Result result = train({"model.vocabulary=600", "run.steps=1", "schedule.total_steps=1",
                               "run.sample_tokens=40", "run.sample_temperature=5"});
  ASSERT_EQ(result.status, 0) << result.err;
  const std::string sample = result.out.substr(result.out.find("sample:"));
  EXPECT_THAT(sample, ::testing::ContainsRegex("<(25[6-9]|2[6-9][0-9]|[345][0-9][0-9])>"));
}

TEST_F(Tool, TellsTheShareOfAPeakThatIsGiven) {
  expect_refused(train({"run.peak_tflops=-1"}), {"run.peak_tflops", "-1"});
  const Result result = train({"run.metrics=" + folder_.file("metrics"), "run.peak_tflops=0.25"},
                              {"--json", folder_.file("json")});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("% of the 500.0 GFLOP/s that 2 ranks could reach"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("  MFU "), std::string::npos) << result.out;
  const json summary = json::parse(read(folder_.file("json")));
  EXPECT_EQ(summary.at("peak_flops_per_second"), 500e9);
  for (const json& line : read_lines(folder_.file("metrics"))) {
    EXPECT_GT(line.at("model_flops_per_second"), 0.0);
    EXPECT_DOUBLE_EQ(line.at("model_flops_utilisation"),
                     line.at("model_flops_per_second").get<double>() / 500e9);
    EXPECT_DOUBLE_EQ(line.at("model_flops_per_second"), summary.at("model_flops_per_token").get<double>() *
                                                            line.at("tokens_per_second").get<double>());
  }
}

// Weights leave a run as a file and as a checkpoint's export: the same bytes, and a run that starts from them
// starts where the first one ended.
TEST_F(Tool, WeightsLeaveAndEnterAsSafetensors) {
  const std::string weights = folder_.file("w.safetensors"), saved = folder_.file("saved");
  const Result whole = train({"run.export=" + weights, "run.checkpoint=" + saved});
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_NE(whole.out.find("exported " + weights), std::string::npos) << whole.out;

  const Result exported = run(
      {"checkpoint", "export", config_, saved, folder_.file("out"), "--set", "run.export_file_bytes=20000"});
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_NE(exported.out.find("model.safetensors.index.json"), std::string::npos) << exported.out;
  const json described = json::parse(read(folder_.file("out/config.json")));
  EXPECT_EQ(described.at("model_type"), "gpt2");
  EXPECT_EQ(described.at("n_embd"), 16);
  EXPECT_EQ(described.at("torch_dtype"), "float32");
  const std::string again = folder_.file("again.safetensors");
  ASSERT_EQ(run({"checkpoint", "export", config_, saved, again}).status, 0);
  EXPECT_TRUE(read(again) == read(weights));

  // Another world, from the file and from the folder of several.
  std::vector<std::string> copies;
  for (const std::string& from : {weights, folder_.file("out")}) {
    const std::string copy = folder_.file("copy" + std::to_string(copies.size()) + ".safetensors");
    const Result result = train({"model.weights=" + from, "run.export=" + copy, "run.steps=1",
                                 "schedule.learning_rate=1e-30", "optimizer.weight_decay=0"},
                                {"--ranks", "3", "--json", folder_.file("json")});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_LT(json::parse(read(folder_.file("json"))).at("first_loss"), std::log(256.0) - 0.1);
    copies.push_back(read(copy));
  }
  EXPECT_TRUE(copies[0] == copies[1]);
  EXPECT_EQ(copies[0].size(), read(weights).size());

  entries_ = folder_.entries();
  expect_refused(train({"model.weights=" + weights, "model.layers=1"}), {"transformer.h.1.", "no place for"});
  expect_refused(train({"model.weights=" + folder_.file("none")}), {"none"});
  expect_refused(train({"run.export=x.safetensors", "run.export_file_bytes=1000"}),
                 {"run.export_file_bytes"});
  expect_refused(run({"checkpoint", "export", config_, folder_.file("none"), again}), {"none"});
}

TEST_F(Tool, AResumedRunContinuesBitwise) {
  const auto [saving, whole, parts, ended, first, second] = run_in_parts();
  ASSERT_EQ(ended.status, 0);
  ASSERT_EQ(first.status, 0);
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_NE(second.out.find("resumed   at step 3"), std::string::npos) << second.out;
  EXPECT_EQ(second.out.find("changed"), std::string::npos) << second.out;
  EXPECT_EQ(second.out.find("other bits"), std::string::npos) << second.out;
  EXPECT_EQ(losses(parts), losses(whole));
  EXPECT_EQ(losses(parts).size(), 6u);

  const Result inspected =
      run({"checkpoint", "verify", folder_.file("saved"), "--json", folder_.file("json")});
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_EQ(json::parse(read(folder_.file("json"))).at("step"), 6);

  // Another learning rate may be wanted; it is said.
  Arguments changed = saving;
  changed.insert(changed.end(), {"run.steps=7", "schedule.learning_rate=0.002"});
  const std::string said = train(changed).out;
  EXPECT_NE(said.find("changed   schedule.learning_rate: 0.001 -> 0.002"), std::string::npos) << said;
  EXPECT_NE(said.find("numerics  other bits than without the pause may follow: the learning rate: "),
            std::string::npos)
      << said;
  // Another batch would skip or repeat samples.
  changed = saving;
  changed.insert(changed.end(), {"run.steps=9", "run.microbatches=1"});
  EXPECT_EQ(train(changed).status, 1);
}

// Also where a step's microbatches are no multiple of the ranks, or fewer, and where a run goes on on another
// mesh.
TEST_F(Tool, AStepIsTheSameOnEveryMesh) {
  const auto on = [&](int shards, const std::string& name, Arguments more = {}) {
    more.insert(
        more.end(),
        {"mesh.shard=" + std::to_string(shards), "precision.parameters=fp32", "run.microbatches=1",
         "run.microbatches_per_step=5", "strategy.stage=3", "strategy.reduce=each", "optimizer.clip=0",
         "run.export=" + folder_.file(name + ".safetensors"), "run.metrics=" + folder_.file(name)});
    const Result result = train(more);
    EXPECT_EQ(result.status, 0) << result.err;
    return read(folder_.file(name + ".safetensors"));
  };
  const std::string alone = on(1, "alone");
  for (const int shards : {2, 3, 8})
    EXPECT_TRUE(on(shards, "shards" + std::to_string(shards)) == alone) << shards << " ranks";
  const std::string saved = "run.checkpoint=" + folder_.file("saved");
  on(2, "first", {saved, "run.steps=3"});
  EXPECT_TRUE(on(3, "second", {saved, "run.resume=true"}) == alone);
  for (const char* name : {"alone", "shards8"})
    EXPECT_EQ(read_lines(folder_.file(name)).front().at("tokens"), 5 * 2 * 16) << name;
}

// With blocks of microbatches, on any number of replicas, too: here three for each, on two shards.
TEST_F(Tool, BlocksMakeAStepTheSameOnReplicas) {
  const auto on = [&](int replicas, int shards) {
    const std::string name = folder_.file("metrics" + std::to_string(replicas));
    const Arguments settings = {"mesh.replicate=" + std::to_string(replicas),
                                "mesh.shard=" + std::to_string(shards), "run.microbatches=1",
                                "run.microbatches_per_step=6", "numerics.blocks=2"};
    Arguments planned = {"plan", config_};
    for (const std::string& setting : settings) planned.insert(planned.end(), {"--set", setting});
    const Result plan = run(planned);
    EXPECT_EQ(plan.status, 0) << plan.err;
    const Result trained = train(with(settings, {"run.metrics=" + name}));
    EXPECT_EQ(trained.status, 0) << trained.err;
    return losses(name);
  };
  const std::vector<std::string> alone = on(1, 1);
  EXPECT_EQ(alone.size(), 6u);
  EXPECT_EQ(on(2, 2), alone);
}

// Elsewhere and on another stage, too; but not with moments of another type.
TEST_F(Tool, AResumedRunKeepsMomentsInBf16) {
  const auto [saving, whole, parts, ended, first, second] = run_in_parts(
      {"precision.moments=bf16"}, {}, {"strategy.stage=1", "strategy.reduce=each", "offload.states=host"});
  ASSERT_EQ(ended.status, 0) << ended.err;
  ASSERT_EQ(first.status, 0) << first.err;
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(losses(parts).size(), 6u);
  EXPECT_EQ(losses(parts), losses(whole));
  const std::string wide = folder_.file("wide");
  ASSERT_EQ(train({"run.metrics=" + wide}).status, 0);
  EXPECT_NE(losses(whole), losses(wide));
  Arguments changed = saving;
  changed.insert(changed.end(), {"run.steps=7", "precision.moments=fp32"});
  const Result refused = train(changed);
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err,
              ::testing::HasSubstr("the optimizer is adamw with moments in bf16 there and adamw here; "
                                   "changed since it was saved: precision.moments: \"bf16\" -> \"fp32\""));
}

TEST_F(Tool, UpdatesAsSoonAsGradientsAreReduced) {
  const std::string decided = folder_.file("decided"), reduced = folder_.file("reduced");
  ASSERT_EQ(train({"optimizer.clip=0", "run.metrics=" + decided}).status, 0);
  const Result result =
      train({"optimizer.clip=0", "strategy.update=reduced", "strategy.stage=2", "run.metrics=" + reduced});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(losses(decided).size(), 6u);
  EXPECT_EQ(losses(reduced), losses(decided));
  const Result diverged = train({"optimizer.clip=0", "strategy.update=reduced", "schedule.kind=constant",
                                 "schedule.total_steps=0", "schedule.learning_rate=1000",
                                 "optimizer.weight_decay=1", "run.steps=40"});
  EXPECT_EQ(diverged.status, 1);
  EXPECT_NE(diverged.err.find("is not finite and is in the weights"), std::string::npos) << diverged.err;
}

// Saved and continued in the middle, it is what it is without.
TEST_F(Tool, UpdatesInTheNextStep) {
  const std::string decided = folder_.file("decided");
  ASSERT_EQ(train({"run.metrics=" + decided}).status, 0);
  const auto [saving, whole, parts, ended, first, second] =
      run_in_parts({"strategy.update=next", "offload.states=host", "strategy.stage=2"});
  ASSERT_EQ(ended.status, 0) << ended.err;
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(losses(decided).size(), 6u);
  EXPECT_EQ(losses(whole), losses(decided));
  EXPECT_EQ(losses(parts), losses(decided));
}

TEST_F(Tool, AResumedRunMayHaveItsStatesElsewhere) {
  const auto [saving, whole, parts, ended, on_disk, second] =
      run_in_parts({}, {},
                   {"strategy.stage=3", "offload.states=disk", "offload.parameters=host",
                    "offload.directory=" + folder_.file(".")});
  ASSERT_EQ(ended.status, 0);
  ASSERT_EQ(on_disk.status, 0) << on_disk.err;
  EXPECT_NE(on_disk.out.find("\ndisk      "), std::string::npos) << on_disk.out;
  EXPECT_NE(on_disk.out.find("\ndevice and host "), std::string::npos) << on_disk.out;
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(second.out.find("\ndisk      "), std::string::npos) << second.out;
  EXPECT_EQ(losses(parts), losses(whole));
}

// Resumed half way at another stage, with the head tied and with one of its own.
TEST_F(Tool, TrainsALlama) {
  const Arguments llama = {"model.family=llama", "model.preset=llama-tiny", "model.kv_heads=1",
                           "model.hidden=24", "strategy.reduce=each"};
  const auto with = [&](const Arguments& more) {
    Arguments all = llama;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  std::vector<std::vector<std::string>> all;
  for (const std::string tied : {"true", "false"}) {
    const auto [saving, whole, parts, ended, first, second] =
        run_in_parts(with({"model.tied=" + tied}), {"strategy.stage=0"}, {}, tied);
    ASSERT_EQ(ended.status, 0);
    ASSERT_EQ(first.status, 0);
    ASSERT_EQ(second.status, 0) << second.err;
    EXPECT_EQ(losses(parts), losses(whole)) << "tied " << tied;
    EXPECT_EQ(losses(whole).size(), 6u);
    all.push_back(losses(whole));
  }
  EXPECT_NE(all[0], all[1]);
  EXPECT_EQ(train(with({"run.sample_tokens=4", "run.steps=1", "schedule.total_steps=1"})).status, 0);
  entries_ = folder_.entries();
  expect_refused(train(with({"model.heads=4", "model.kv_heads=3"})),
                 {"model.heads is 4", "model.kv_heads, which is 3"});
  expect_refused(train(with({"model.context=8"})), {"run.length is 16", "8"});
}

TEST_F(Tool, EveryStageHasTheSameLosses) {
  std::vector<std::vector<std::string>> all;
  for (const char* stage : {"0", "1", "2", "3"}) {
    const std::string metrics = folder_.file(std::string("stage") + stage);
    const Result result =
        train({"run.metrics=" + metrics, std::string("strategy.stage=") + stage, "strategy.reduce=each"});
    ASSERT_EQ(result.status, 0) << result.err;
    all.push_back(losses(metrics));
  }
  for (const auto& one : all) EXPECT_EQ(one, all.front());
}

TEST_F(Tool, EvaluatesWhatIsThereAtTheEnd) {
  const std::string saved = "run.checkpoint=" + folder_.file("saved");
  const std::string metrics = "run.metrics=" + folder_.file("metrics");
  const Result result = train({"run.evaluate_every=4", saved, metrics}, {"--json", folder_.file("json")});
  ASSERT_EQ(result.status, 0) << result.err;
  const json summary = json::parse(read(folder_.file("json")));
  EXPECT_EQ(summary.at("validation_step"), 6);
  std::vector<std::int64_t> evaluated;
  for (const json& line : read_lines(folder_.file("metrics")))
    if (line.contains("validation_loss")) evaluated.push_back(line.at("step"));
  EXPECT_EQ(evaluated, (std::vector<std::int64_t>{4, 6}));
  // Tokens are those of the whole run, of whatever length its sequences were.
  ASSERT_EQ(train({saved, metrics, "run.resume=true", "run.steps=8", "run.length=8"}).status, 0);
  const json last = read_lines(folder_.file("metrics")).back();
  EXPECT_EQ(last.at("tokens"), 6 * 128 + 2 * 64);
  const Result again = train({saved, "run.resume=true", "run.steps=8", "run.evaluate_every=4"});
  EXPECT_THAT(again.out, ::testing::HasSubstr("step 8  validation loss "));
  EXPECT_THAT(again.out, ::testing::HasSubstr("no step was trained: run.steps is 8, and 8 were done before"));
}

// Not on what lies behind them: a microbatch without a sample takes its time, and changes no sum.
TEST_F(Tool, EvaluatesNoMoreThanThereIs) {
  const auto evaluated = [&](const std::string& microbatches) {
    const Result result = train({"run.evaluate_every=6", "run.evaluation_microbatches=" + microbatches,
                                 "run.metrics=" + folder_.file("metrics")});
    EXPECT_EQ(result.status, 0) << result.err;
    const json line = read_lines(folder_.file("metrics")).back();
    return std::pair(result.out, std::pair(line.at("validation_loss"), line.at("validation_tokens")));
  };
  const auto [out, whole] = evaluated("0");
  const std::string all = "evaluate  all of the validation data: ";
  const std::size_t at = out.find(all);
  ASSERT_NE(at, std::string::npos) << out;
  const int count = std::stoi(out.substr(at + all.size()));
  ASSERT_GT(count, 8);
  EXPECT_EQ(evaluated(std::to_string(count)).second, whole);
  const auto [more_out, more] = evaluated(std::to_string(count + 100));
  EXPECT_THAT(more_out, ::testing::HasSubstr(all + std::to_string(count) + " microbatches of a rank\n"));
  EXPECT_EQ(more, whole);
  EXPECT_LT(evaluated(std::to_string(count - 1)).second.second, whole.second);
  // Nor does a plan, which depends on how many there are where a rank gathers for each again.
  const auto planned = [&](const std::string& microbatches) {
    const Result result = run({"plan", config_, "--set", "run.evaluate_every=6", "--set",
                               "run.evaluation_microbatches=" + microbatches, "--set", "mesh.pipeline=2",
                               "--set", "pipeline.schedule=gpipe"});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(planned("0"), planned(std::to_string(count)));
}

// Beside training or not, each is of its own step.
TEST_F(Tool, SavesBesideTraining) {
  std::vector<std::string> weights;
  for (const char* beside : {"true", "false"}) {
    const std::string saved = folder_.file(beside);
    const Result result = train({"run.checkpoint=" + saved, "run.checkpoint_every=2", "run.checkpoint_keep=3",
                                 std::string("run.checkpoint_async=") + beside});
    ASSERT_EQ(result.status, 0) << result.err;
    std::size_t at = 0;
    for (const char* step : {"2", "4", "6"}) {
      const std::string note = fmt::format("step {}  saved {}/step-0000000{}\n", step, saved, step);
      at = result.out.find(note, at);
      ASSERT_NE(at, std::string::npos) << "no '" << note << "' in order in: " << result.out;
      const std::string checkpoint = fmt::format("{}/step-0000000{}", saved, step);
      EXPECT_EQ(run({"checkpoint", "verify", checkpoint}).status, 0);
      const std::string output = fmt::format("{}{}.safetensors", saved, step);
      ASSERT_EQ(run({"checkpoint", "export", config_, checkpoint, output}).status, 0);
      weights.push_back(read(output));
    }
  }
  ASSERT_EQ(weights.size(), 6u);
  for (std::size_t k = 0; k < 3; ++k) EXPECT_TRUE(weights[k] == weights[k + 3]) << "step " << 2 * k + 2;
  EXPECT_FALSE(weights[0] == weights[1]);
}

TEST_F(Tool, SaysWhatBecomesOfTheLossScale) {
  const std::string saved = "run.checkpoint=" + folder_.file("saved");
  const std::string metrics = "run.metrics=" + folder_.file("metrics");
  const Arguments scaled = {saved, metrics, "precision.loss_scaling=true", "run.resume=true"};
  const auto resume = [&](const std::string& steps, const std::string& scale) {
    Arguments all = scaled;
    all.insert(all.end(), {"run.steps=" + steps, "precision.initial_scale=" + scale});
    return train(all);
  };
  ASSERT_EQ(train({saved, metrics, "run.steps=3"}).status, 0);
  const Result begun = resume("4", "1024");
  EXPECT_THAT(begun.out, ::testing::HasSubstr("changed   precision.initial_scale: 65536.0 -> 1024.0\n"));
  EXPECT_EQ(read_lines(folder_.file("metrics")).back().at("loss_scale"), 1024);
  const Result goes_on = resume("5", "64");
  EXPECT_THAT(goes_on.out,
              ::testing::HasSubstr("precision.initial_scale: 1024.0 -> 64.0; the scale goes on at 1024\n"));
  EXPECT_EQ(read_lines(folder_.file("metrics")).back().at("loss_scale"), 1024);
}

TEST_F(Tool, ATimeLimitEndsARun) {
  const auto begin = std::chrono::steady_clock::now();
  const Result result = train({"run.steps=0", "run.seconds=0.5"}, {"--json", folder_.file("json")});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  EXPECT_GT(json::parse(read(folder_.file("json"))).at("steps"), 0);
}

TEST_F(Tool, ASignalFinishesTheStepSavesAndExitsWell) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const std::string saved = folder_.file("saved" + std::to_string(signal));
    const std::string metrics = folder_.file("metrics" + std::to_string(signal));
    const pid_t child = start(train_arguments(
        {"run.steps=1000000", "run.checkpoint=" + saved, "run.metrics=" + metrics, "run.sample_tokens=5"}));
    for (int i = 0; i < 2000 && read(metrics).size() < 200; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(child, signal);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    ::kill(child, signal);  // `timeout` signals the process, and then its whole group
    const Result result = finish(child);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err,
                ::testing::StartsWith("tessera: ends after the step in progress, or within an evaluation, "
                                      "and saves; "));
    EXPECT_NE(result.out.find("ended by a signal"), std::string::npos) << result.out;
    const Result inspected = run({"checkpoint", "verify", saved, "--json", folder_.file("json")});
    ASSERT_EQ(inspected.status, 0) << inspected.err;
    EXPECT_EQ(json::parse(read(folder_.file("json"))).at("step"), read_lines(metrics).back().at("step"));
  }
}

TEST_F(Tool, SignalsDoNotInterruptProducts) {
  // A handler that ran on a thread inside a product would overwrite the heap, and the run would not end well.
  const std::string metrics = folder_.file("metrics");
  const pid_t child =
      start(train_arguments({"run.steps=2", "run.microbatches=200", "run.metrics=" + metrics}));
  for (int i = 0; i < 2000 && read(metrics).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(600)) {
    ::kill(child, SIGTERM);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  EXPECT_EQ(finish(child).status, 0);
}

TEST_F(Tool, ASignalEndsALongEvaluation) {
  const std::string saved = folder_.file("saved"), metrics = folder_.file("metrics");
  const pid_t child = start(train_arguments(
      {"run.evaluate_every=1", "run.evaluation_microbatches=0", "data.validation_fraction=0.9",
       "model.channels=512", "run.sequences=1", "run.checkpoint=" + saved, "run.metrics=" + metrics}));
  for (int i = 0; i < 2000 && read(metrics).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(child, SIGTERM);  // the first step is done: what comes next takes many times as long
  const Result result = finish(child);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out.find("validation loss"), std::string::npos) << result.out;
  EXPECT_EQ(read_lines(metrics).size(), 1u);
  ASSERT_EQ(run({"checkpoint", "verify", saved, "--json", folder_.file("json")}).status, 0);
  EXPECT_EQ(json::parse(read(folder_.file("json"))).at("step"), 1);
}

// Resumed, it is made first: the metrics are those of a run that no signal ended.
TEST_F(Tool, AResumedRunMakesTheEvaluationThatASignalEnded) {
  const std::string saved = folder_.file("saved"), metrics = folder_.file("metrics");
  const Arguments all = {"run.evaluate_every=2", "run.evaluation_microbatches=0",
                         "data.validation_fraction=0.9", "run.sequences=1", "run.steps=5"};
  const auto with = [&](const Arguments& more) {
    Arguments settings = all;
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  };
  const std::string whole = folder_.file("whole");
  ASSERT_EQ(train(with({"run.metrics=" + whole})).status, 0);
  ASSERT_EQ(train(with({"run.steps=2", "run.checkpoint=" + saved, "run.metrics=" + metrics})).status, 0);
  // As a signal leaves it.
  std::string lines = read(metrics);
  const std::size_t last = lines.rfind('\n', lines.size() - 2) + 1;
  ASSERT_THAT(lines.substr(last), ::testing::HasSubstr("validation_loss"));
  std::ofstream(metrics, std::ios::trunc) << lines.substr(0, last);
  for (int again = 0; again < 2; ++again) {  // nothing is owed the second time
    ASSERT_EQ(train(with({"run.checkpoint=" + saved, "run.metrics=" + metrics, "run.resume=true"})).status,
              0);
    const auto of = [](const std::string& file) {
      std::vector<std::pair<json, json>> found;
      for (const json& line : read_lines(file))
        found.emplace_back(line.at("step"),
                           line.contains("loss") ? line["loss"] : line.at("validation_loss"));
      return found;
    };
    EXPECT_EQ(of(metrics), of(whole));
  }
}

// A job whose evaluations take longer than it is given goes on, but for each second evaluation.
TEST_F(Tool, AnEvaluationThatSignalsEndedTwiceIsLeftOut) {
  const std::string text = sample_text(1'500'000);
  folder_.write("validation.txt", std::as_bytes(std::span(text)));
  const std::string metrics = folder_.file("metrics");
  std::vector<std::int64_t> steps;
  for (int job = 0; job < 4; ++job) {
    const pid_t child = start(
        train_arguments({"run.evaluate_every=2", "run.evaluation_microbatches=0",
                         "data.validation=" + folder_.file("validation.txt"), "run.sequences=1",
                         "run.length=8", "run.metrics=" + metrics, "run.checkpoint=" + folder_.file("saved"),
                         "run.resume=auto", "run.steps=100", "schedule.total_steps=100"}));
    const std::string ends =
        job % 2 == 0 ? "\"step\":" + std::to_string(job + 2) + "," : "first the evaluation";
    for (int i = 0; i < 2000 && read(job % 2 == 0 ? metrics : printed().out).find(ends) == std::string::npos;
         ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(child, SIGTERM);
    EXPECT_EQ(finish(child).status, 0);
    const json last = read_lines(metrics).back();
    EXPECT_EQ(last.contains("validation_left_out"), job % 2 == 1) << last;
    steps.push_back(last.at("step"));
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 2, 4, 4}));
}

// The validation data may be far more than is read ahead of its use.
TEST_F(Tool, ASignalEndsAnEvaluationOfVeryManyMicrobatches) {
  const std::string text = sample_text(1'500'000);
  folder_.write("validation.txt", std::as_bytes(std::span(text)));
  const std::string metrics = folder_.file("metrics");
  const pid_t child = start(train_arguments({"run.evaluate_every=1", "run.evaluation_microbatches=0",
                                             "data.validation=" + folder_.file("validation.txt"),
                                             "run.sequences=1", "run.length=8", "run.metrics=" + metrics}));
  for (int i = 0; i < 2000 && read(metrics).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto begin = std::chrono::steady_clock::now();
  ::kill(child, SIGTERM);
  EXPECT_EQ(finish(child).status, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1000));
  EXPECT_EQ(read_lines(metrics).size(), 1u);
}

TEST_F(Tool, ASignalMuchLaterThanTheFirstEndsARunAtOnce) {
  const auto wait_for = [](const std::string& file, const std::string& part) {
    for (int i = 0; i < 2000 && read(file).find(part) == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  // A run that has not begun its first step, which takes minutes, ends well: then it is given more time.
  for (const int ms : {300, 1000, 3000, 10000}) {
    const pid_t child =
        start(train_arguments({"model.channels=512", "run.sequences=256", "run.microbatches=1000"}));
    wait_for(printed().out, "tokens a step");
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    ::kill(child, SIGINT);
    wait_for(printed().err, "saves nothing, as run.checkpoint is empty");
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    ::kill(child, SIGINT);
    const int status = finish(child).status;
    if (status == 0) continue;
    EXPECT_EQ(status, -SIGINT);
    return;
  }
  FAIL() << "no run began its first step";
}

// Saved is what was trained, also where nobody reads what it says, and after the terminal went.
TEST_F(Tool, AnOutputThatIsNotReadEndsNoRun) {
  const auto shell = [&](const std::string& before, const Arguments& arguments, const std::string& after) {
    std::string line = before + TESSERA_TOOL;
    for (const std::string& one : arguments) line += " '" + one + "'";
    return start_process({"/bin/sh", "-c", line + after}, printed());
  };
  const std::string saved = folder_.file("saved"), status = outputs_.file("status");
  const Result closed = finish(
      shell("{ ", train_arguments({"run.checkpoint=" + saved}), "; echo $? > " + status + "; } | true"));
  EXPECT_EQ(read(status), "1\n");
  EXPECT_THAT(closed.err, ::testing::HasSubstr("cannot write to the standard output: Broken pipe"));
  EXPECT_EQ(run({"checkpoint", "verify", saved}).status, 0);

  const std::string metrics = folder_.file("metrics");
  const pid_t kept = shell("trap '' HUP; exec ",
                           train_arguments({"run.steps=1000000", "run.metrics=" + metrics}), "");  // nohup
  for (int i = 0; i < 2000 && read(metrics).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(kept, SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(read(printed().err), "");
  ::kill(kept, SIGTERM);
  EXPECT_EQ(finish(kept).status, 0);
}

TEST_F(Tool, PlansTheActivationsThatABudgetAllows) {
  const Arguments too_little = {"--set", "strategy.recompute=auto", "--set", "run.device_memory=1000",
                                "--set", "run.sequences=64"};
  for (const char* command : {"plan", "train"}) {  // the one tells it, the other refuses it
    Arguments all = {command, config_};
    all.insert(all.end(), too_little.begin(), too_little.end());
    const Result misfit = run(all);
    const bool plans = std::string_view(command) == "plan";
    EXPECT_EQ(misfit.status, plans ? 0 : 1);
    const std::string& told = plans ? misfit.out : misfit.err;
    for (const char* part : {"run.device_memory is 1000 bytes", "bytes are missing", "activations",
                             "no change that was tried fits"})
      EXPECT_NE(told.find(part), std::string::npos) << "'" << part << "' is not in: " << told;
    EXPECT_EQ(
        told.find("recompute embed none, block.0 to block.1 full, head none (auto)") != std::string::npos,
        plans)
        << told;
  }
  const auto plan = [&](const Arguments& more) {
    Arguments all = {"plan", config_, "--json", folder_.file("json"), "--set", "model.layers=4"};
    for (const std::string& setting : more) all.insert(all.end(), {"--set", setting});
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    json planned = json::parse(read(folder_.file("json")));
    planned["out"] = result.out;
    return planned;
  };
  const auto bytes = [](const json& planned) {
    return planned.at("predicted").at("arena_bytes").get<std::int64_t>();
  };
  const std::string long_batch = "run.sequences=64";  // so that activations are most of the memory
  const json none = plan({long_batch}), full = plan({long_batch, "strategy.recompute=full"});
  ASSERT_GT(bytes(none), bytes(full));
  const std::int64_t budget = (bytes(none) + bytes(full)) / 2;
  const json chosen =
      plan({long_batch, "strategy.recompute=auto", "run.device_memory=" + std::to_string(budget)});
  EXPECT_LE(bytes(chosen), budget);
  EXPECT_GT(bytes(chosen), bytes(full));
  EXPECT_NE(chosen.at("out").get<std::string>().find("(auto)"), std::string::npos);
  std::set<std::string> choices;
  for (const json& unit : chosen.at("activations")) choices.insert(unit.at("recompute").get<std::string>());
  EXPECT_GT(choices.size(), 1u) << "the budget asks for a mixture: " << chosen.at("activations");
  EXPECT_EQ(none.at("activations").size(), 6u);
}

TEST_F(Tool, Plans) {
  const auto plan = [&](const Arguments& more) {
    Arguments all = {"plan", config_, "--json", folder_.file("json")};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("peak"), std::string::npos);
    return json::parse(read(folder_.file("json")));
  };
  const json four = plan({"--ranks", "4"}), one = plan({"--ranks", "1"});
  EXPECT_EQ(four.at("ranks"), 4);
  EXPECT_LT(four.at("predicted").at("persistent_bytes"), one.at("predicted").at("persistent_bytes"));
  EXPECT_EQ(four.at("replicated"), one.at("replicated"));
  EXPECT_EQ(four.at("parameter_numel"), one.at("parameter_numel"));
  EXPECT_GE(four.at("predicted").at("arena_bytes"), four.at("predicted").at("live_peak_bytes"));
  EXPECT_FALSE(four.at("peak_instruction").get<std::string>().empty());
  // No data, no device, any number of ranks.
  EXPECT_EQ(plan({"--ranks", "1024", "--set", "data.train="}).at("ranks"), 1024);
  EXPECT_EQ(plan({"--set", "run.device_memory=1"}).at("fits"), false);
}

// Cuts by cost alone, then as a budget below what they take allows, then one that none can keep.
TEST_F(Tool, CutsAsTheBudgetAllows) {
  const auto run_plan = [&](const Arguments& more) {
    Arguments all = {"plan",  config_,          "--json", folder_.file("json"), "--set", "mesh.pipeline=2",
                     "--set", "model.layers=6", "--set",  "mesh.shard=1"};
    for (const std::string& setting : more) all.insert(all.end(), {"--set", setting});
    return run(all);
  };
  const auto plan = [&](const Arguments& more) {
    const Result result = run_plan(more);
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(read(folder_.file("json")));
  };
  const auto fullest = [](const json& result) {
    std::int64_t most = 0;
    for (const json& rank : result.at("mesh").at("pipeline_ranks"))
      most = std::max(most, rank.at("arena_bytes").get<std::int64_t>());
    return most;
  };
  const json free = plan({});
  std::int64_t budget = fullest(free);  // the least that any cuts need
  for (int cut = 1; cut < 8; ++cut)
    budget = std::min(budget, fullest(plan({"pipeline.cuts=" + std::to_string(cut)})));
  ASSERT_LT(budget, fullest(free)) << "the cheapest cuts are the smallest, too: they show nothing";
  const json bound = plan({"run.device_memory=" + std::to_string(budget)});
  EXPECT_NE(bound.at("mesh").at("cuts"), free.at("mesh").at("cuts"));
  EXPECT_LE(fullest(bound), budget);
  EXPECT_EQ(plan({"run.device_memory=" + std::to_string(fullest(free))}).at("mesh").at("cuts"),
            free.at("mesh").at("cuts"));
  // What is made again makes room for cuts.
  const json made_again =
      plan({"run.device_memory=" + std::to_string(budget - 1), "strategy.recompute=auto"});
  EXPECT_LT(fullest(made_again), budget);
  // Where no cuts fit, the plan of those that take least says what is missing; what it lists does fit.
  const json none = plan({"run.device_memory=" + std::to_string(budget - 1)});
  EXPECT_EQ(none.at("fits"), false);
  EXPECT_EQ(fullest(none), budget);
  const std::string misfit = none.at("misfit");
  EXPECT_THAT(misfit, ::testing::ContainsRegex("device_memory is " + std::to_string(budget - 1) +
                                               " bytes, but the plan of pipeline rank [01] needs " +
                                               std::to_string(budget) + ": 1 bytes are missing"));
  ASSERT_NE(misfit.find("would fit with offload.activations = host: "), std::string::npos) << misfit;
  EXPECT_EQ(plan({"run.device_memory=" + std::to_string(budget - 1), "offload.activations=host"}).at("fits"),
            true);
  EXPECT_EQ(train({"mesh.pipeline=2", "model.layers=6", "mesh.shard=1",
                   "run.device_memory=" + std::to_string(budget - 1)})
                .status,
            1);
}

TEST_F(Tool, GathersOnceWhereTheBudgetAllows) {
  const auto plan = [&](const Arguments& more) {
    Arguments all = {"plan", config_, "--json", folder_.file("json")};
    for (const char* setting : {"mesh.pipeline=2", "strategy.stage=3", "pipeline.schedule=gpipe",
                                "run.microbatches=4", "model.layers=6", "pipeline.cuts=count"})
      all.insert(all.end(), {"--set", setting});
    for (const std::string& setting : more) all.insert(all.end(), {"--set", setting});
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    return std::pair(json::parse(read(folder_.file("json"))), result.out);
  };
  const auto bytes = [](const json& result) {
    return result.at("predicted").at("arena_bytes").get<std::int64_t>();
  };
  const std::int64_t once = bytes(plan({"pipeline.gather_once=true"}).first);
  ASSERT_LT(bytes(plan({}).first), once);
  for (const bool fits : {true, false}) {
    const auto [result, out] = plan(
        {"pipeline.gather_once=\"auto\"", "run.device_memory=" + std::to_string(fits ? once : once - 1)});
    EXPECT_EQ(result.at("mesh").at("gather_once"), fits);
    EXPECT_NE(out.find(fits ? "in a row: true (auto)" : "in a row: false (auto)"), std::string::npos) << out;
  }
}

TEST_F(Tool, PlansEverySpace) {
  const Arguments offloaded = {
      "plan", config_, "--set", "offload.states=disk", "--set", "offload.parameters=host"};
  const auto plan = [&](const Arguments& more) {
    Arguments all = offloaded;
    all.insert(all.end(), {"--json", folder_.file("json"), "--html", folder_.file("page"), "--why"});
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    return std::pair(result.out, json::parse(read(folder_.file("json"))));
  };
  const auto [out, all] = plan({});
  for (const std::string space : {"device", "host", "disk"}) {
    for (const std::string& part :
         {"arena     of " + space, "peak      of " + space + " at " + (space == "disk" ? "all times" : "#"),
          "largest at the peak of " + space})
      EXPECT_NE(out.find(part), std::string::npos) << "'" << part << "' is not in: " << out;
    const json& peak = all.at("peaks").at(space);
    EXPECT_EQ(peak.at("instruction").get<std::string>().front(), '#');
    EXPECT_FALSE(peak.at("largest").empty());
    EXPECT_NE(read(folder_.file("page")).find("\"space\":\"" + space + "\""), std::string::npos);
  }
  EXPECT_EQ(all.at("fits"), true);
  EXPECT_EQ(all.at("peak_instruction"), all.at("peaks").at("device").at("instruction"));
  EXPECT_EQ(all.at("largest_at_peak"), all.at("peaks").at("device").at("largest"));

  const auto [misfit, refused] = plan({"--set", "run.host_memory=10000"});
  EXPECT_EQ(refused.at("fits"), false);
  EXPECT_EQ(refused.at("host_budget_bytes"), 10000);
  const std::int64_t needed = refused.at("predicted_host").at("arena_bytes");
  EXPECT_NE(misfit.find("\nrun.host_memory is 10000 bytes, but the plan needs " + std::to_string(needed)),
            std::string::npos)
      << misfit;
  EXPECT_EQ(refused.at("misfit").get<std::string>().find("device_memory"), std::string::npos);
}

TEST_F(Tool, Simulates) {
  const auto simulate = [&](const Arguments& more) {
    Arguments all = {"simulate", config_, "--json", folder_.file("json"), "--trace", folder_.file("trace")};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    for (const char* part : {"step", "exposed communication", "tokens/s", "model FLOPs", "MiB a rank"})
      EXPECT_NE(result.out.find(part), std::string::npos) << "'" << part << "' is not in: " << result.out;
    return json::parse(read(folder_.file("json")));
  };
  const json two = simulate({});
  EXPECT_EQ(two.at("ranks"), 2);
  EXPECT_GT(json::parse(read(folder_.file("trace"))).at("traceEvents").size(), 20u);
  const double total = two.at("total_us");
  EXPECT_NEAR(two.at("tokens_per_second"), 2 * 2 * 2 * 16 / total * 1e6, 1e-3);
  EXPECT_NEAR(simulate({"--peak-gflops", "200"}).at("model_flops_utilisation").get<double>() * 2,
              two.at("model_flops_utilisation").get<double>(), 1e-12);

  const json mesh = simulate({"--set", "mesh.pipeline=2", "--set", "mesh.replicate=2"});
  EXPECT_EQ(mesh.at("ranks"), 8);
  ASSERT_EQ(mesh.at("pipeline_ranks").size(), 2u);
  EXPECT_GT(mesh.at("bubble"), 0.1);
  EXPECT_LT(mesh.at("bubble"), 0.9);
  for (const json& row : mesh.at("pipeline_ranks")) {
    EXPECT_EQ(row.at("ranks"), 4);
    EXPECT_NEAR(row.at("compute_us").get<double>() + row.at("idle_us").get<double>(), mesh.at("total_us"),
                1e-6);
    EXPECT_LE(row.at("exposed_us"), row.at("idle_us").get<double>() + 1e-9);
  }
  std::set<int> processes;
  const json trace = json::parse(read(folder_.file("trace")));
  for (const json& event : trace.at("traceEvents")) processes.insert(event.at("pid").get<int>());
  EXPECT_EQ(processes, (std::set{0, 1}));
  ASSERT_EQ(run({"plan", config_, "--json", folder_.file("json"), "--set", "mesh.pipeline=2", "--set",
                 "mesh.replicate=2"})
                .status,
            0);
  const json plan = json::parse(read(folder_.file("json")));
  for (std::size_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(mesh.at("pipeline_ranks").at(rank).at("arena_bytes"),
              plan.at("mesh").at("pipeline_ranks").at(rank).at("arena_bytes"));
}

// Each rate counts where something depends on it, and is shown there.
TEST_F(Tool, SimulatesWhatLivesOffTheDevice) {
  ASSERT_EQ(run({"info", "--json", outputs_.file("info")}).status, 0);
  if (json::parse(read(outputs_.file("info"))).at("cuda").at("version").get<std::string>().empty())
    GTEST_SKIP() << "this build has no CUDA, whose kernels' workspace a plan counts";
  const auto simulated = [&](const Arguments& more) {
    Arguments all = {"simulate", config_, "--json", folder_.file("json"), "--set", "run.device=cuda"};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    return std::pair(result.out, json::parse(read(folder_.file("json"))).at("total_us").get<double>());
  };
  struct Case {
    const char *states, *option, *shown;
  };
  for (const Case& c : {Case{"host", "--host-memory", "the host's 0.001"},
                        Case{"host", "--host-link", "to and from the host 0.001 GB/s"},
                        Case{"disk", "--disk", "disk 0.001 GB/s"}}) {
    const std::string states = std::string("offload.states=") + c.states;
    const auto [out, us] = simulated({"--set", states, c.option, "0.001"});
    EXPECT_NE(out.find(c.shown), std::string::npos) << out;
    EXPECT_GT(us, 2 * simulated({"--set", states}).second) << c.option;
    const auto [without, unchanged] = simulated({c.option, "0.001"});
    EXPECT_EQ(without.find(c.shown), std::string::npos) << without;
    EXPECT_EQ(unchanged, simulated({}).second) << c.option;
  }
  EXPECT_NE(simulated({"--gflops", "1e-6"}).first.find("compute s"), std::string::npos);
  EXPECT_NE(simulated({}).first.find("compute ms"), std::string::npos);
}

TEST_F(Tool, SimulatesAClusterOfAnySize) {
  const auto total_us = [&](const Arguments& more) {
    Arguments all = {"simulate", config_, "--json", folder_.file("json"), "--set", "mesh.shard=8"};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(read(folder_.file("json"))).at("total_us").get<double>();
  };
  const double one_node = total_us({});
  EXPECT_EQ(total_us({"--link", "10", "--latency", "5"}), one_node);
  EXPECT_EQ(total_us({"--ranks-per-node", "4"}), one_node);  // as fast between nodes as inside
  const Arguments slow = {"--ranks-per-node", "4", "--outer-link", "0.1", "--outer-latency", "50"};
  const auto with = [&](const std::string& collectives) {
    Arguments all = slow;
    all.insert(all.end(), {"--collectives", collectives});
    return total_us(all);
  };
  EXPECT_GT(with("ring"), one_node);
  EXPECT_EQ(with("ring"), total_us(slow));
  EXPECT_LT(with("hierarchical"), with("ring"));
  EXPECT_LT(with("recursive"), with("ring"));

  const auto begin = std::chrono::steady_clock::now();
  const Result large = run({"simulate", config_, "--ranks-per-node", "8", "--set", "mesh.pipeline=4", "--set",
                            "mesh.replicate=16", "--set", "mesh.shard=16", "--set", "data.train="});
  EXPECT_EQ(large.status, 0) << large.err;
  EXPECT_NE(large.out.find("128 nodes"), std::string::npos) << large.out;
  const Result planned = run({"plan", config_, "--set", "mesh.pipeline=2", "--set", "mesh.replicate=16"});
  EXPECT_NE(planned.out.find("  0-31  "), std::string::npos) << planned.out;  // one column for all replicas
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(120));

  // Wrong options are refused by name.
  const auto refusal = [&](const Arguments& more) {
    Arguments all = {"simulate", config_};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 2);
    return result.err;
  };
  const std::string alone = refusal({"--outer-link", "1"});
  EXPECT_NE(alone.find("--outer-link"), std::string::npos) << alone;
  EXPECT_NE(alone.find("--ranks-per-node"), std::string::npos) << alone;
  const std::string unknown = refusal({"--collectives", "star"});
  for (const char* part : {"--collectives", "star", "ring", "hierarchical"})
    EXPECT_NE(unknown.find(part), std::string::npos) << unknown;
  EXPECT_NE(refusal({"--ranks-per-node", "0"}).find("--ranks-per-node"), std::string::npos);
  const std::string below = refusal({"--gflops", "50", "--peak-gflops", "20"});
  EXPECT_NE(below.find("--peak-gflops: 20 is below --gflops, 50"), std::string::npos) << below;
  EXPECT_NE(refusal({"--inner-latency", "-1"}).find("--inner-latency"), std::string::npos);
}

TEST_F(Tool, TellsWhatItIs) {
  const Result result = run({"info", "--json", folder_.file("json")});
  ASSERT_EQ(result.status, 0) << result.err;
  const json info = json::parse(read(folder_.file("json")));
  EXPECT_GT(info.at("cores"), 0);
  EXPECT_GT(info.at("memory_bytes"), 0);
  EXPECT_EQ(info.at("devices").at(0), "cpu");
  const json& uring = info.at("io_uring");
  const auto unusable = uring.at("unusable").get<std::string>();
  EXPECT_NE(result.out.find(unusable.empty() ? "io_uring       yes" : unusable), std::string::npos);
  if (!uring.at("built")) {
    EXPECT_NE(unusable.find("TESSERA_WITH_LIBURING"), std::string::npos) << unusable;
  }
  const json& cuda = info.at("cuda");
  EXPECT_EQ(info.at("devices").size(), cuda.at("gpus").empty() ? 1 : 2);
  EXPECT_EQ(cuda.at("unusable").get<std::string>().empty(), !cuda.at("gpus").empty());
  EXPECT_EQ(cuda.at("nccl_unusable").get<std::string>().empty(),
            !cuda.at("nccl_loaded").get<std::string>().empty());
  for (const char* key : {"version", "nccl", "nccl_loaded", "nccl_unusable", "cudnn", "cudnn_loaded",
                          "cudnn_unusable", "unusable"})
    EXPECT_NE(result.out.find(cuda.at(key).get<std::string>()), std::string::npos) << key;
  EXPECT_NE(result.out.find(info.at("version").get<std::string>()), std::string::npos);
}

TEST_F(Tool, RefusesRanksOnGpusThatAreNotThere) {
  ASSERT_EQ(run({"info", "--json", outputs_.file("info")}).status, 0);
  const json cuda = json::parse(read(outputs_.file("info"))).at("cuda");
  if (!cuda.at("gpus").empty()) GTEST_SKIP() << "there are some";
  const bool built = !cuda.at("version").get<std::string>().empty();
  for (const char* shards : {"mesh.shard=2", "mesh.shard=1"})
    expect_refused(train({"run.device=cuda", shards}),
                   {"no GPU can be used", "run.device is cuda", built ? "driver" : "TESSERA_WITH_CUDA"});
}

TEST_F(Tool, RanksThatALauncherStartedWithoutMpiAreCounted) {
  const auto with = [&](const std::map<std::string, std::string>& variables, const Arguments& settings) {
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    const Result result = train(settings);
    for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
    return result;
  };
  expect_refused(with({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {}), {"MASTER_ADDR is not set"});
  expect_refused(with({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {"run.device=cuda"}), {"MASTER_ADDR is not set"});
  expect_refused(
      with({{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "29400"}}, {}),
      {"the mesh has 2 ranks, but 3 processes were started", "set mesh.shard = 3, as --ranks 3 does, ",
       "or start 2\n"});
  expect_refused(with({{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "29400"}},
                      {"run.device=cuda", "mesh.shard=1"}),
                 {"the mesh has 1 rank, but 3"});
  expect_refused(with({{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "29400"}},
                      {"run.device=cuda", "mesh.replicate=2"}),
                 {"change mesh.pipeline × mesh.replicate, 1 × 2, which must divide them, or start 4\n"});
  EXPECT_EQ(with({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, {}).status, 0) << "one process: its ranks are threads";
}

TEST_F(Tool, UsageErrorsAreStatusTwo) {
  for (const Arguments& arguments : {Arguments{},
                                     {"trian"},
                                     {"train"},
                                     {"train", config_, "--nope"},
                                     {"plan", config_, "--ranks", "two"},
                                     {"train", config_, "--ranks", "0"},
                                     {"simulate", config_, "--link", "0"},
                                     {"compare", config_},
                                     {"checkpoint"}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2) << result.out << result.err;
    EXPECT_NE(result.err, "");
  }
  for (const Arguments& arguments : {Arguments{"--help"}, {"train", "--help"}, {"--version"}, {"config"}})
    EXPECT_EQ(run(arguments).status, 0);
}

TEST_F(Tool, RefusesABadConfiguration) {
  expect_refused(run({"train", folder_.file("none.toml")}), {"none.toml"});
  expect_refused(train({"run.steps=ten"}), {"run.steps", "ten", "an integer"});
  expect_refused(train({"run.step=10"}), {"run.step", "did you mean 'run.steps'"});
  expect_refused(train({"mesh.tensor=7"}), {"mesh.tensor is 7"});
  expect_refused(train({}, {"--ranks", "5000"}), {"5000", "1024"});
  expect_refused(train({"precision.parameters=fp16"}), {"fp16"});
  expect_refused(train({"strategy.update=reduced"}), {"strategy.update", "optimizer.clip = 0", "are 1 and"});
  expect_refused(train({"strategy.reduction=native"}), {"strategy.reduction", "\"cpu\"", "\"exact\""});
  expect_refused(train({"strategy.update=next"}),
                 {"strategy.update", "offload.states is \"device\"", "\"host\" or \"disk\""});
  expect_refused(train({"run.length=17"}), {"run.length is 17", "16"});
  expect_refused(train({"model.channels=15"}), {"channels"});
  expect_refused(train({"run.resume=true", "run.checkpoint=" + folder_.file("none")}),
                 {"no checkpoint", "none"});
}

// A pattern names the files that one name each would, in this order: the same losses from the same bytes.
TEST_F(Tool, TrainsOnTheFilesOfAPattern) {
  std::vector<std::int32_t> tokens(4000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * i % 251);
  const auto write = [&](const std::string& name, std::span<const std::int32_t> part) {
    TokenWriter writer(folder_.file(name), TokenEncoding::uint16);
    writer.append(part);
    writer.finish();
  };
  // Files of whole windows of 16 tokens that share the token between them.
  write("part_1.bin", std::span(tokens).first(1601));
  write("part_2.bin", std::span(tokens).subspan(1600, 2001));
  write("whole.bin", std::span(tokens).first(3601));
  const auto trained_on = [&](const std::string& data) {
    const std::string metrics = folder_.file("metrics");
    const Result result =
        train({"data.train=" + folder_.file(data), "data.validation_fraction=0", "run.metrics=" + metrics});
    EXPECT_EQ(result.status, 0) << result.err;
    return losses(metrics);
  };
  const std::vector<std::string> whole = trained_on("whole.bin");
  EXPECT_EQ(whole.size(), 6U);
  EXPECT_EQ(trained_on("part_*.bin"), whole);
}

TEST_F(Tool, RefusesBadData) {
  expect_refused(train({"data.train="}), {"data.train is empty"});
  expect_refused(train({"data.train=" + folder_.file("none.txt")}), {"none.txt"});
  expect_refused(train({"data.train=/"}), {"data.train", "'/'"});
  expect_refused(train({"data.train=" + folder_.file("none_*.bin")}), {"data.train", "none_*.bin"});
  expect_refused(train({"model.vocabulary=255"}), {"text.txt", "255"});

  std::vector<std::int32_t> tokens(1000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
  TokenWriter writer(folder_.file("tokens.bin"), TokenEncoding::uint16);
  writer.append(tokens);
  writer.finish();
  entries_ = folder_.entries();
  const std::string file = "data.train=" + folder_.file("tokens.bin");
  expect_refused(train({file}), {"tokens.bin", "256"});  // a token that is not below the vocabulary
  EXPECT_EQ(train({file, "model.vocabulary=1000", "run.steps=1", "schedule.total_steps=1"}).status, 0);
  expect_refused(train({file, "model.vocabulary=1000", "run.sample_tokens=2"}), {"run.sample_prompt"});
  std::filesystem::resize_file(folder_.file("tokens.bin"), 1024 + 1999);
  expect_refused(train({file, "model.vocabulary=1000"}), {"tokens.bin", "1000"});
  std::filesystem::resize_file(folder_.file("tokens.bin"), 100);
  expect_refused(train({file, "model.vocabulary=1000"}), {"tokens.bin"});

  const std::string brief = "a few words";
  folder_.write("brief.txt", std::as_bytes(std::span(brief)));
  entries_ = folder_.entries();
  expect_refused(train({"data.train=" + folder_.file("brief.txt")}), {"brief.txt", "run.length"});
}

TEST_F(Tool, RefusesFilesItCannotWrite) {
  expect_refused(train({}, {"--json", folder_.file("no/json")}), {"no/json"});
  expect_refused(train({"run.metrics=" + folder_.file("no/metrics")}), {"run.metrics", "no/metrics"});
  expect_refused(train({"run.metrics=/dev/full"}), {"/dev/full"});
  expect_refused(train({"run.trace=" + folder_.file("no/trace")}), {"run.trace: ", "no/trace"});
}

TEST_F(Tool, AFullDiskWhileSaving) {
  const std::string saved = folder_.file("saved");
  ASSERT_EQ(train({"run.checkpoint=" + saved, "run.steps=2"}).status, 0);
  // A limit on file sizes stands for a full disk: the system refuses in the same calls.
  const Result result = finish(start(train_arguments({"run.checkpoint=" + saved, "run.resume=true"}), 20000));
  EXPECT_EQ(result.status, 1) << result.out;
  EXPECT_NE(result.err.find("step-00000006.tmp/rank-0000"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(" bytes"), std::string::npos) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(folder_.entries(), entries_ + 1);
  EXPECT_FALSE(std::filesystem::exists(saved + "/step-00000006.tmp"));
  EXPECT_EQ(run({"checkpoint", "verify", saved}).status, 0);
  EXPECT_EQ(train({"run.checkpoint=" + saved, "run.resume=true"}).status, 0);
}

TEST_F(Tool, ABudgetThatIsExceeded) {
  const Result result = train({"run.device_memory=10000"});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("tessera: run.device_memory is 10000 bytes"), std::string::npos) << result.err;
  EXPECT_EQ(folder_.entries(), entries_);
}

TEST_F(Tool, ABudgetOfTheHostThatIsExceeded) {
  const Result result = train({"run.host_memory=10000", "offload.states=host"});
  EXPECT_EQ(result.status, 1);
  for (const char* part : {"tessera: run.host_memory is 10000 bytes", "bytes are missing", "optimizer state",
                           "would fit with offload.states = device", "× the step's time"})
    EXPECT_NE(result.err.find(part), std::string::npos) << "'" << part << "' is not in: " << result.err;
  EXPECT_EQ(train({"run.host_memory=10 MiB", "offload.states=host"}).status, 0);
  EXPECT_EQ(folder_.entries(), entries_);
}

TEST_F(Tool, LooksAtNoCheckpoint) {
  expect_refused(run({"checkpoint", "inspect", folder_.file("none")}), {"no checkpoint", "none"});
}

}  // namespace
}  // namespace tessera::testing
