// What plan, simulate and train say of one run's memory is the same, in every space and on every rank.
#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <set>

#include "tessera/program_text.h"
#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ToolPlans : public Tool {
 protected:
  Result say(const std::string& command, const Arguments& settings) const {
    Arguments all = {command, config_, "--json", outputs_.file("json")};
    for (const std::string& setting : settings) all.insert(all.end(), {"--set", setting});
    return run(all);
  }
  // What is written, with what is printed.
  json told(const std::string& command, const Arguments& settings) const {
    const Result result = say(command, settings);
    EXPECT_EQ(result.status, 0) << result.err;
    json result_json = json::parse(read(outputs_.file("json")));
    result_json["out"] = result.out;
    return result_json;
  }
  std::string file_of(const std::string& name, const std::string& text) const {
    return folder_.write(name, std::as_bytes(std::span(text)));
  }
};

// States that one pipeline rank alone keeps on the host.
const Arguments kUneven = {"mesh.pipeline=2",     "mesh.shard=1",        "model.layers=6",
                           "pipeline.cuts=count", "offload.states=host", "offload.states_on_device=0.5"};

constexpr std::array<std::array<const char*, 2>, 3> kSpaceKeys = {{{"predicted", "arena_bytes"},
                                                                   {"predicted_host", "host_arena_bytes"},
                                                                   {"predicted_disk", "disk_arena_bytes"}}};

// Fewer validation data than are asked for make a shorter program, of which all choices depend.
TEST_F(ToolPlans, AnEvaluationOfFewDataIsPlannedAsItIsTrained) {
  const Arguments settings = {"model.layers=6",
                              "model.heads=1",
                              "model.context=32",
                              "model.attention_dropout=0",
                              "precision.parameters=fp32",
                              "optimizer.kind=adam",
                              "strategy.stage=3",
                              "strategy.prefetch=2",
                              "strategy.recompute=selective",
                              "strategy.reduce=last",
                              "offload.states=host",
                              "offload.parameters=disk",
                              "offload.staged=3",
                              "run.sequences=1",
                              "run.microbatches=1",
                              "run.steps=1",
                              "schedule.total_steps=1",
                              "run.evaluate_every=6",
                              "run.evaluation_microbatches=100"};
  const std::string few = "data.validation=" + file_of("few.txt", sample_text(5));
  const json many = told("plan", settings), planned = told("plan", with(settings, {few}));
  const json trained = told("train", with(settings, {few}));
  for (const auto& [key, bytes] : kSpaceKeys) EXPECT_EQ(planned.at(key), trained.at("memory").at(key)) << key;
  EXPECT_EQ(planned.at("mesh"), trained.at("mesh"));
  const auto evaluated = [&](const Arguments& more) {
    const std::string file = folder_.file("programs.txt");
    Arguments all = {"plan", config_, "--program", file};
    for (const std::string& setting : with(settings, more)) all.insert(all.end(), {"--set", setting});
    EXPECT_EQ(run(all).status, 0);
    int most = 0;
    for (const Program& program : parse_programs(read(file)))
      if (program.kind == StepKind::evaluate) most = std::max(most, program.microbatches);
    return most;
  };
  EXPECT_LT(evaluated({few}), evaluated({})) << "as many for few data as for many: the test shows nothing";
  EXPECT_THAT(planned.at("out").get<std::string>(), Not(HasSubstr("evaluate ")));
  // Where the data are elsewhere the number is taken as it is, and that is said.
  const json elsewhere = told("plan", with(settings, {"data.train=" + folder_.file("absent")}));
  EXPECT_EQ(elsewhere.at("predicted"), many.at("predicted"));
  EXPECT_THAT(elsewhere.at("out").get<std::string>(),
              HasSubstr("evaluate  100 microbatches of a rank are assumed, fewer where the data hold fewer: "
                        "data.train"));
}

TEST_F(ToolPlans, OfEverySpaceTheRankThatHoldsMostIsTold) {
  const json planned = told("plan", kUneven), simulated = told("simulate", kUneven);
  const json trained = told("train", with(kUneven, {"run.steps=1", "schedule.total_steps=1"}));
  const json& rows = planned.at("mesh").at("pipeline_ranks");
  ASSERT_EQ(rows.at(0).at("host_arena_bytes"), 0);
  ASSERT_GT(rows.at(0).at("arena_bytes"), rows.at(1).at("arena_bytes"));
  for (const auto& [key, bytes] : kSpaceKeys) {
    std::int64_t most = 0;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      most = std::max(most, rows.at(rank).at(bytes).get<std::int64_t>());
      EXPECT_EQ(rows.at(rank).at(bytes), simulated.at("pipeline_ranks").at(rank).at(bytes));
    }
    EXPECT_EQ(planned.at(key).at("arena_bytes"), most) << key;
    EXPECT_EQ(planned.at(key), trained.at("memory").at(key));
  }
  EXPECT_EQ(planned.at("predicted").at("pipeline_rank"), 0);
  EXPECT_EQ(planned.at("predicted_host").at("pipeline_rank"), 1);
  EXPECT_EQ(planned.at("peaks").count("host"), 1u);
  EXPECT_EQ(planned.at("peaks").count("disk"), 0u);
  for (const json& said : {planned, simulated, trained})
    EXPECT_THAT(said.at("out").get<std::string>(), HasSubstr("on the host"));
  EXPECT_THAT(
      planned.at("out").get<std::string>(),
      ::testing::ContainsRegex("arena     of host: [0-9,]+ bytes on pipeline rank 1, where it is most"));
}

// In each space the rank that lacks most is what counts: with as much as it needs all fit.
TEST_F(ToolPlans, WhatIsSaidToBeNeededIsEnough) {
  const Arguments few = with(kUneven, {"run.device_memory=10000", "run.host_memory=10000"});
  const json refused = told("plan", few);
  EXPECT_EQ(refused.at("fits"), false);
  const std::string misfit = refused.at("misfit");
  const auto needed = [&](const std::string& key) {
    const std::string is = key + " is 10000 bytes, but the plan of pipeline rank ";
    const std::size_t at = misfit.find(is);
    EXPECT_NE(at, std::string::npos) << misfit;
    const std::string bytes = misfit.substr(misfit.find("needs ", at) + 6);
    return bytes.substr(0, bytes.find(':'));
  };
  const std::string device = needed("run.device_memory"), host = needed("run.host_memory");
  EXPECT_EQ(device, refused.at("predicted").at("arena_bytes").dump());
  EXPECT_EQ(host, refused.at("predicted_host").at("arena_bytes").dump());
  const json enough = told("plan", with(kUneven, {"run.device_memory=" + device, "run.host_memory=" + host}));
  EXPECT_EQ(enough.at("fits"), true) << enough.at("out");
  // The other commands say the same.
  const Result trained = say("train", few);
  EXPECT_EQ(trained.err, "tessera: " + misfit + "\n");
  EXPECT_EQ(trained.out, "") << "no rank has begun";
  const std::string simulated = told("simulate", few).at("out");
  for (const char* key : {"run.device_memory", "run.host_memory"})
    EXPECT_THAT(simulated, HasSubstr(std::string("budget    ") + key + ": 10,000 bytes: "));
}

// How buffers are packed may decide what takes least: less that is made again, or is elsewhere, say.
TEST_F(ToolPlans, WhatFitsByTheLeastIsFound) {
  const Arguments narrow = {"model.heads=4",
                            "model.channels=64",
                            "model.layers=3",
                            "model.vocabulary=300",
                            "model.context=32",
                            "model.dropout=0",
                            "model.logits_memory=20000",
                            "model.attention_dropout=0",
                            "run.length=1",
                            "run.sequences=3",
                            "run.microbatches=1",
                            "precision.moments=bf16",
                            "optimizer.clip=0",
                            "strategy.reduce=last",
                            "strategy.recompute=selective",
                            "offload.states=host",
                            "offload.activations=host"};
  const std::int64_t least =
      told("plan", with(narrow, {"strategy.stage=3", "strategy.prefetch=0", "offload.parameters=host"}))
          .at("predicted")
          .at("arena_bytes");
  const std::string budget = "run.device_memory=" + std::to_string(least);
  const json refused = told("plan", with(narrow, {"strategy.stage=2", budget}));
  EXPECT_EQ(refused.at("fits"), false);
  EXPECT_THAT(refused.at("misfit").get<std::string>(), HasSubstr("would fit with strategy.stage = 3, "));
}

// The programs of all pipeline ranks and of every kind, as they are run, in one file.
TEST_F(ToolPlans, ProgramsAreWrittenAsText) {
  const std::string file = folder_.file("programs.txt");
  const Result planned =
      run({"plan", config_, "--program", file, "--set", "mesh.pipeline=2", "--set", "mesh.shard=1", "--set",
           "offload.states=host", "--set", "strategy.update=next", "--set", "run.evaluate_every=1", "--set",
           "data.validation=" + file_of("few.txt", sample_text(600))});
  ASSERT_EQ(planned.status, 0) << planned.err;
  const std::vector<Program> programs = parse_programs(read(file));
  std::set<std::pair<int, StepKind>> found;
  for (const Program& program : programs) {
    std::vector<std::string> names;
    for (const UnitOutline& unit : program.units) names.push_back(unit.name);
    EXPECT_EQ(names, (std::vector<std::string>{"embed", "block.0", "block.1", "head"}));
    found.emplace(program.pipeline_rank, program.kind);
  }
  using enum StepKind;
  const std::set<std::pair<int, StepKind>> all = {{0, train}, {0, evaluate}, {0, finish},
                                                  {1, train}, {1, evaluate}, {1, finish}};
  EXPECT_EQ(found, all);
  EXPECT_EQ(to_text(programs), read(file));
  // And to nobody else's place.
  entries_ = folder_.entries();
  expect_refused(run({"plan", config_, "--program", file, "--html", file}), {"--program", "--html"});
}

// The ranks that have a microbatch in the last round, and those that rest there.
TEST_F(ToolPlans, RanksThatRestArePlannedToo) {
  const Arguments settings = {"mesh.shard=4", "run.microbatches=1", "run.microbatches_per_step=5",
                              "strategy.stage=3", "precision.parameters=fp32"};
  Arguments text = {"plan", config_, "--program", outputs_.file("program")};
  for (const std::string& setting : settings) text.insert(text.end(), {"--set", setting});
  ASSERT_EQ(run(text).status, 0);
  std::multiset<std::pair<bool, int>> rests;
  for (const Program& program : parse_programs(read(outputs_.file("program"))))
    if (program.kind == StepKind::train) rests.insert({program.rests, program.last_round_ranks});
  EXPECT_EQ(rests, (std::multiset<std::pair<bool, int>>{{false, 1}, {true, 1}}));

  const json plan = told("plan", settings);
  EXPECT_THAT(plan.at("out"),
              HasSubstr("5 microbatches of 2 × 16, 2 on 1 of 4 data ranks and 1 on the others"));
  EXPECT_THAT(plan.at("out"), HasSubstr("of data rank 0, the fullest of the device"));
  EXPECT_THAT(plan.at("out"), HasSubstr("of data ranks 1 to 3, resting in the last round: "));
  EXPECT_EQ(plan.at("tokens_per_step"), 5 * 2 * 16);
  EXPECT_EQ(plan.at("predicted").at("first_data_rank"), 0);
  const json simulated = told("simulate", settings);
  EXPECT_EQ(simulated.at("pipeline_ranks").size(), 1U);
  EXPECT_EQ(simulated.at("pipeline_ranks")[0].at("ranks"), 4);
  EXPECT_EQ(simulated.at("pipeline_ranks")[0].at("arena_bytes"), plan.at("predicted").at("arena_bytes"));
}

// Every rank is counted, and stands in the row of its pipeline rank.
TEST_F(ToolPlans, TensorRanksAreRanksToo) {
  const Arguments settings = {"mesh.pipeline=2", "mesh.shard=1", "mesh.tensor=2", "run.steps=1"};
  const json plan = told("plan", settings);
  const json& rows = plan.at("mesh").at("pipeline_ranks");
  EXPECT_EQ(rows[0].at("ranks"), json::parse("[[0, 1]]"));
  EXPECT_EQ(rows[1].at("ranks"), json::parse("[[2, 3]]"));
  const json simulated = told("simulate", settings);
  EXPECT_EQ(simulated.at("mesh").at("tensor"), 2);
  EXPECT_GT(simulated.at("exposed_along_us").at("tensor"), 0);
  EXPECT_THAT(simulated.at("out"), HasSubstr("\n  along tensor "));
  EXPECT_EQ(simulated.at("exposed_along_us").at("shard"), 0);
  EXPECT_THAT(simulated.at("out"), Not(HasSubstr("along shard")));
  std::int64_t bytes = 0;
  for (const json& row : rows) bytes += 2 * row.at("arena_bytes").get<std::int64_t>();
  EXPECT_EQ(told("train", settings).at("memory").at("predicted_bytes"), bytes);
}

// The examples' configurations: one as it is, the other on fewer ranks, since all of them take a minute.
TEST_F(ToolPlans, ExamplesOfTensorRanksArePlanned) {
  const std::string examples = std::string(TESSERA_SOURCE_DIR) + "/examples/";
  const auto plan = [&](const std::string& config, const Arguments& more) {
    Arguments all = {"plan", examples + config, "--json", outputs_.file("json")};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(read(outputs_.file("json")));
  };
  const json llama = plan("tensor_parallel/llama_2x2x2.toml", {});
  EXPECT_EQ(llama.at("ranks"), 8);
  EXPECT_EQ(llama.at("mesh").at("schedule"), "zb_h1");
  EXPECT_EQ(llama.at("mesh").at("pipeline_ranks")[1].at("ranks"), json::parse("[[4, 5, 6, 7]]"));
  // The chain runs down the ranks and back.
  const Arguments v = {"--set", "pipeline.schedule=zb_v", "--set", "pipeline.chunks=2",
                       "--set", "pipeline.cuts=1,3,5"};
  const json down_and_back = plan("tensor_parallel/llama_2x2x2.toml", v).at("mesh");
  EXPECT_EQ(down_and_back.at("schedule"), "zb_v");
  EXPECT_EQ(down_and_back.at("pipeline_ranks")[0].at("units"), json::parse(R"(["embed", "head"])"));
  EXPECT_EQ(down_and_back.at("pipeline_ranks")[1].at("units"),
            json::parse(R"(["block.0 to block.1", "block.2 to block.3"])"));
  const Result one_chunk = run({"plan", examples + "tensor_parallel/llama_2x2x2.toml", "--set", v[1]});
  EXPECT_NE(one_chunk.status, 0);
  EXPECT_THAT(one_chunk.err, HasSubstr("pipeline.chunks is 1, but schedule zb_v has 2 on each rank"));
  const Result tied =
      run(with({"plan", examples + "train_gpt_pipeline/mesh.toml"}, Arguments(v.begin(), v.begin() + 4)));
  EXPECT_NE(tied.status, 0);
  EXPECT_THAT(tied.err, HasSubstr("schedule zb_v runs several microbatches through one before the other"));
  const json gpt3 = plan("gpt3_on_3072/gpt3.toml", {"--set", "mesh.pipeline=2", "--set", "model.layers=2",
                                                    "--set", "run.microbatches=2"});
  EXPECT_EQ(gpt3.at("ranks"), 96);
  EXPECT_EQ(gpt3.at("mesh").at("tensor"), 8);
}

TEST_F(ToolPlans, TwoRunsAreComparedBeforeEitherTrains) {
  const auto compare = [&](const Arguments& more) {
    return run(with({"compare", config_, config_, "--json", outputs_.file("json")}, more));
  };
  const auto result = [&] { return json::parse(read(outputs_.file("json"))); };
  // Two ranks with two microbatches each, one rank with four of them.
  const Arguments each = {"--set", "strategy.reduce=each"};
  Result equal = compare(with(each, {"--set-b", "mesh.shard=1", "--set-b", "run.microbatches=4", "--set-b",
                                     "strategy.stage=0", "--set-b", "strategy.recompute=full"}));
  EXPECT_EQ(equal.status, 0) << equal.err;
  EXPECT_THAT(equal.out, HasSubstr("equal     training losses, norms and weights are the same to the bit"));
  EXPECT_EQ(result().at("equal"), true);
  EXPECT_EQ(result().at("a"), result().at("b"));
  equal = compare({"--set-b", "run.threads_per_rank=2"});
  EXPECT_EQ(equal.status, 0);
  EXPECT_THAT(equal.out,
              HasSubstr("equal     if this changes no bit: run.threads_per_rank is 1 in A and 2 in B"));

  Result other = compare({"--set-a", "optimizer.beta2=0.9"});
  EXPECT_EQ(other.status, 3) << other.err;
  EXPECT_THAT(other.out, HasSubstr("different optimizer.beta2: 0.9 in A, 0.95 in B\n"));
  EXPECT_EQ(result().at("difference"), "optimizer.beta2: 0.9 in A, 0.95 in B");
  other = compare({"--set", "strategy.reduce=last", "--set-b", "strategy.reduce=each"});
  EXPECT_EQ(other.status, 3) << other.err;
  EXPECT_THAT(other.out, HasSubstr("are added: "));
  EXPECT_THAT(other.out, HasSubstr("(0, 2) + (1, 3) in A, "));

  other = compare({"--set-b", "precision.loss_scaling=true"});
  EXPECT_THAT(other.out, HasSubstr("different loss_scaling: absent in A, given in B (and 6 more)\n"));
  // What the facts do not have is said.
  equal = compare({"--set-b", "run.resume=auto", "--set-b", "run.checkpoint=" + folder_.file("none")});
  EXPECT_THAT(equal.out, HasSubstr("if this changes no bit: B may go on from a checkpoint in "));
  equal = compare({"--set", "data.train=" + folder_.file("absent")});
  EXPECT_THAT(equal.out, HasSubstr("the data of A could not be looked at, and the data of B could not"));
  other = compare({"--set", "data.train=" + folder_.file("absent"), "--set-b", "data.validation=" + config_});
  EXPECT_EQ(other.status, 3) << other.out;  // nothing of the training data is held back
  // A seed that nothing is drawn from is no fact.
  const Arguments given = {"--set", "model.weights=w.safetensors", "--set-b", "run.seed=2"};
  EXPECT_EQ(compare(given).status, 3);
  EXPECT_EQ(compare(with(given, {"--set", "model.dropout=0", "--set", "model.attention_dropout=0"})).status,
            0);

  // A difference that is found is the result; that a run means nothing is an error.
  EXPECT_EQ(compare({"--set-b", "mesh.tensor=7"}).status, 1);
  EXPECT_TRUE(result().contains("error"));
}

TEST_F(ToolPlans, TheFingerprintOfAPlanIsThatOfTheRunAndOfItsCheckpoint) {
  const Arguments settings = {"run.steps=1", "schedule.total_steps=1",
                              "run.checkpoint=" + outputs_.file("saved")};
  const json planned = told("plan", settings).at("numerics"),
             trained = told("train", settings).at("numerics");
  EXPECT_EQ(planned, trained);
  EXPECT_EQ(planned.at("fingerprint").get<std::string>().size(), 33U);
  ASSERT_EQ(run({"checkpoint", "inspect", outputs_.file("saved"), "--json", outputs_.file("json")}).status,
            0);
  EXPECT_EQ(json::parse(read(outputs_.file("json"))).at("numerics"), trained);
  // Where the data are elsewhere they are known by their names.
  const json elsewhere = told("plan", with(settings, {"data.train=" + folder_.file("absent")}));
  EXPECT_NE(elsewhere.at("numerics").at("fingerprint"), planned.at("fingerprint"));
  EXPECT_THAT(elsewhere.at("out").get<std::string>(),
              HasSubstr("with the names of data that cannot be opened"));
}

// As on a processor without AVX-512, by what oneDNN is told that it may use.
TEST_F(ToolPlans, AProcessorThatMultipliesNoBf16TrainsInItAllTheSame) {
  for (const char* command : {"plan", "train"}) {
    const Result narrow =
        finish(start_process({"/usr/bin/env", "ONEDNN_MAX_CPU_ISA=AVX2", TESSERA_TOOL, command, config_,
                              "--set", "precision.parameters=bf16", "--json", outputs_.file("json")},
                             printed()));
    EXPECT_EQ(narrow.status, 0) << narrow.err;
  }
  const json trained = json::parse(read(outputs_.file("json")));
  EXPECT_LT(trained.at("loss").get<double>(), trained.at("first_loss").get<double>());
}

}  // namespace
}  // namespace tessera::testing
