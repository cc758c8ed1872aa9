// Options of the command line beside the keys of the configuration: which counts, and which is named.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Whatever the mesh is, and in whatever order that is said.
TEST_F(Tool, RanksAreThoseOfTheWorld) {
  const auto planned = [&](const Arguments& options) {
    Arguments all = {"plan", config_, "--json", folder_.file("json")};
    all.insert(all.end(), options.begin(), options.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    const json plan = json::parse(read(folder_.file("json")));
    return std::pair(plan.at("ranks").get<int>(), plan.at("mesh").at("shard").get<int>());
  };
  EXPECT_EQ(planned({"--set", "mesh.shard=3", "--set", "mesh.shard=1", "--set=run.steps=3"}),
            std::pair(1, 1));
  for (const Arguments& options : {Arguments{"--ranks", "8", "--set", "mesh.replicate=2"},
                                   {"--set", "mesh.replicate=2", "--set", "mesh.shard=3", "--ranks", "8"}})
    EXPECT_EQ(planned(options), std::pair(8, 4));
  EXPECT_EQ(planned({"--ranks", "4", "--set", "mesh.pipeline=2", "--set", "mesh.replicate=2"}),
            std::pair(4, 1));
  std::filesystem::remove(folder_.file("json"));
  expect_refused(
      run({"plan", config_, "--ranks", "6", "--set", "mesh.pipeline=2", "--set", "mesh.replicate=2"}),
      {"--ranks is 6; it must be a multiple of mesh.pipeline × mesh.replicate × mesh.tensor, 2 × 2 × 1"});
}

TEST_F(Tool, NamesRanksThatAreNone) {
  for (const char* wrong : {"0", "-3", "two", "1.5", "5000000000"}) {
    const Result result = run({"plan", config_, "--ranks", wrong});
    EXPECT_EQ(result.status, 2) << wrong;
    EXPECT_THAT(result.err, HasSubstr("--ranks: " + std::string(wrong) + " is no number of ranks; give "));
  }
}

TEST_F(Tool, NamesTheKeyThatMakesSeveralFilesOfAnExport) {
  const std::string saved = folder_.file("saved"), output = folder_.file("w.safetensors");
  ASSERT_EQ(train({"run.checkpoint=" + saved, "run.steps=1", "schedule.total_steps=1"}).status, 0);
  entries_ = folder_.entries();
  expect_refused(
      run({"checkpoint", "export", config_, saved, output, "--set", "run.export_file_bytes=20000"}),
      {"run.export_file_bytes is 20000", "'" + output + "'", "name a folder"});
}

TEST_F(Tool, NamesLatenciesBelowZero) {
  for (const char* option : {"--inner-latency", "--outer-latency"})
    for (const std::string wrong : {"-1", "inf", "fast"}) {
      const Result result = run({"simulate", config_, "--ranks-per-node", "2", option, wrong});
      EXPECT_EQ(result.status, 2) << option;
      EXPECT_THAT(result.err,
                  HasSubstr(": " + wrong + " is no number of at least 0; see tessera simulate --help\n"));
    }
  EXPECT_EQ(run({"simulate", config_, "--inner-latency", "0"}).status, 0);
}

TEST_F(Tool, NamesTheLinkAsItWasGiven) {
  for (const std::string option : {"--link", "--inner-link", "--latency", "--inner-latency"}) {
    const Result result = run({"simulate", config_, option, "abc"});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, ::testing::StartsWith("tessera: " + option + ": abc is no number "));
  }
  EXPECT_EQ(run({"simulate", config_, "--link", "1", "--inner-link", "1"}).status, 2);
}

// What "auto" stands for where both budgets count.
class ToolBudgets : public Tool {
 protected:
  // The plan, with what is printed.
  json plan(const Arguments& settings) const {
    Arguments all = {"plan",  config_,           "--json", folder_.file("json"),
                     "--set", "model.layers=4",  "--set",  "model.channels=32",
                     "--set", "model.context=32"};
    for (const std::string& setting : settings) all.insert(all.end(), {"--set", setting});
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    json planned = json::parse(read(folder_.file("json")));
    planned["out"] = result.out;
    return planned;
  }
  static std::int64_t device_bytes(const json& planned) { return planned.at("predicted").at("arena_bytes"); }
  static std::int64_t host_bytes(const json& planned) {
    return planned.at("predicted_host").at("arena_bytes");
  }
  static std::string bytes(const char* key, std::int64_t value) {
    return key + ("=" + std::to_string(value));
  }
};

TEST_F(ToolBudgets, KeepsStatesOnTheDeviceThatTheHostHasNoRoomFor) {
  const Arguments states = {"offload.states=host"};
  const json none = plan(with(states, {"offload.states_on_device=0"}));
  const json all = plan(with(states, {"offload.states_on_device=1"}));
  ASSERT_LT(host_bytes(all), host_bytes(none));
  const Arguments automatic =
      with(states, {"offload.states_on_device=auto", bytes("run.device_memory", device_bytes(all)),
                    bytes("run.host_memory", (host_bytes(all) + host_bytes(none)) / 2)});
  EXPECT_EQ(plan(automatic).at("fits"), true);
  const Result trained = train(with(automatic, {"model.layers=4", "model.channels=32", "model.context=32",
                                                "run.steps=1", "schedule.total_steps=1"}));
  EXPECT_EQ(trained.status, 0) << trained.err;
  // Where no share fits, what is advised does, also where the share is left as it is.
  const Arguments refused = with(states, {"offload.states_on_device=auto", "offload.activations=host",
                                          "run.device_memory=1 GB", "run.host_memory=1"});
  EXPECT_THAT(plan(refused).at("out").get<std::string>(),
              HasSubstr("would fit with offload.states = device, offload.activations = device: "));
  const json moved = plan(with(refused, {"offload.states=device", "offload.activations=device"}));
  EXPECT_EQ(moved.at("fits"), true);
  EXPECT_THAT(moved.at("out").get<std::string>(), Not(HasSubstr("states    ")));
}

TEST_F(ToolBudgets, MakesAgainWhatTheHostHasNoRoomFor) {
  const Arguments long_batch = {"run.sequences=16", "run.length=32"};
  const json none = plan(long_batch), host = plan(with(long_batch, {"offload.activations=host"}));
  const json full = plan(with(long_batch, {"strategy.recompute=full"}));
  const Arguments automatic =
      with(long_batch,
           {"strategy.recompute=auto", "offload.activations=auto",
            bytes("run.device_memory", device_bytes(full) + (device_bytes(none) - device_bytes(full)) / 4)});
  const json unbounded = plan(automatic);
  ASSERT_GT(host_bytes(unbounded), 0) << "nothing waits on the host: the test shows nothing";
  for (const std::int64_t on_host :
       {std::int64_t{1}, host_bytes(unbounded) / 2, host_bytes(unbounded) - 1, host_bytes(unbounded)}) {
    const json planned = plan(with(automatic, {bytes("run.host_memory", on_host)}));
    EXPECT_EQ(planned.at("fits"), true) << planned.at("out");
  }
}

// States first on the host, as they take the least of the device there, leave it no room for activations:
// what fits together counts.
TEST_F(ToolBudgets, ChoosesWhatFitsTogether) {
  const Arguments both = {"run.sequences=16", "run.length=32", "offload.states=host"};
  const json apart =
      plan(with(both, {"offload.activations=host", "strategy.recompute=full", "offload.states_on_device=1"}));
  const json planned = plan(with(
      both, {"strategy.recompute=auto", "offload.activations=auto", "offload.states_on_device=auto",
             bytes("run.device_memory", device_bytes(apart)), bytes("run.host_memory", host_bytes(apart))}));
  EXPECT_EQ(planned.at("fits"), true) << planned.at("out");
}

// With parameters off the device, units that stay are not brought again: 4 take less than none, and than all.
TEST_F(ToolBudgets, KeepsMoreUnitsResidentWhereTheyTakeLess) {
  const Arguments offloaded = {"strategy.stage=3",        "precision.parameters=fp32",
                               "run.microbatches=1",      "offload.states=host",
                               "offload.parameters=host", "offload.activations=host"};
  std::vector<std::int64_t> by_count;
  for (int units = 0; units <= 6; ++units)
    by_count.push_back(
        device_bytes(plan(with(offloaded, {"strategy.resident_units=" + std::to_string(units)}))));
  const std::int64_t least = *std::min_element(by_count.begin(), by_count.end());
  ASSERT_LT(least, by_count.front());
  const Arguments budget = with(offloaded, {bytes("run.device_memory", least)});
  const json planned = plan(with(budget, {"strategy.resident_units=auto"}));
  EXPECT_EQ(planned.at("fits"), true) << planned.at("out");
  EXPECT_EQ(by_count.at(planned.at("resident_units").get<std::size_t>()), least);
  EXPECT_THAT(plan(budget).at("out").get<std::string>(),
              HasSubstr("would fit with strategy.resident_units = "));
}

// The peak of the options, else that of the configuration, else what modules reach.
TEST_F(Tool, SimulatesAShareOfThePeakThatIsGiven) {
  const auto share = [&](const Arguments& options) {
    Arguments all = {"simulate", config_, "--json", folder_.file("json")};
    all.insert(all.end(), options.begin(), options.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(read(folder_.file("json"))).at("model_flops_utilisation").get<double>();
  };
  const double of_reached = share({});
  EXPECT_DOUBLE_EQ(share({"--set", "run.peak_tflops=0.4"}), of_reached / 4);
  EXPECT_DOUBLE_EQ(share({"--set", "run.peak_tflops=0.4", "--peak-gflops", "200"}), of_reached / 2);
  EXPECT_DOUBLE_EQ(share({"--set", "run.peak_tflops=0.05", "--peak-gflops", "200"}), of_reached / 2);
  entries_ = folder_.entries();
  expect_refused(run({"simulate", config_, "--set", "run.peak_tflops=0.05"}),
                 {"run.peak_tflops is 0.05, 50 GFLOP/s", "--gflops, 100", "--peak-gflops"});
}

TEST_F(Tool, SimulatesWhatCommunicationDominates) {
  const auto simulated = [&](const Arguments& more) {
    Arguments all = {"simulate", config_, "--gflops", "1e6", "--latency", "0"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all).out;
  };
  const std::string slow = simulated({"--link", "1e-6", "--ranks", "4"}), fast = simulated({"--link", "1e6"});
  EXPECT_THAT(slow, HasSubstr("\nnote      communication takes longer than the step: "));
  EXPECT_THAT(fast, ::testing::Not(HasSubstr("note ")));
  EXPECT_THAT(slow, ::testing::Not(HasSubstr("bubble")));
  EXPECT_THAT(simulated({"--set", "mesh.pipeline=2"}), HasSubstr("bubble of that"));
  expect_refused(run({"simulate", config_, "--gflops", "1e-300"}), {"more than a million years"});
  EXPECT_THAT(run({"simulate", config_, "--gflops", "1e-6", "--ranks", "1"}).out,
              ::testing::ContainsRegex("tokens/s +0[.]0[0-9]+\n"));
}

// OpenMP tells what it found in the environment each time it is loaded.
TEST_F(Tool, TeamsWaitBrieflyUnlessTheEnvironmentSaysHow) {
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) ::unsetenv(name);
  ::setenv("OMP_DISPLAY_ENV", "verbose", 1);
  const std::string ours = run({"train", "--help"}).err;
  ::setenv("GOMP_SPINCOUNT", "77", 1);
  const std::string theirs = run({"train", "--help"}).err;
  for (const char* name : {"OMP_DISPLAY_ENV", "GOMP_SPINCOUNT"}) ::unsetenv(name);
  if (ours.find("GOMP_SPINCOUNT") == std::string::npos) GTEST_SKIP() << "OpenMP is not GNU's";
  EXPECT_THAT(ours, HasSubstr("GOMP_SPINCOUNT = '2000'"));
  EXPECT_THAT(theirs, HasSubstr("GOMP_SPINCOUNT = '77'"));
  EXPECT_THAT(theirs, ::testing::Not(HasSubstr("2000")));

  // As some packages start programs: what begins is not the tool then.
  const std::string linker = "/lib64/ld-linux-x86-64.so.2";
  if (!std::filesystem::exists(linker)) return;
  const Result linked = finish(start_process({linker, TESSERA_TOOL, "train", "--help"}, printed()));
  EXPECT_EQ(linked.status, 0) << linked.err;
}

// The page is of the model that is planned, whatever preset it began with.
TEST_F(Tool, ThePageNamesTheModel) {
  ASSERT_EQ(run({"plan", config_, "--html", folder_.file("page")}).status, 0);
  const std::string page = read(folder_.file("page"));
  EXPECT_THAT(page, HasSubstr("gpt2, 2 layers, 16 channels, stage 3, "));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("gpt2-tiny")));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("pipeline rank 1")));

  // And of all pipeline ranks.
  ASSERT_EQ(run({"plan", config_, "--html", folder_.file("two"), "--set", "mesh.pipeline=2"}).status, 0);
  EXPECT_THAT(read(folder_.file("two")),
              ::testing::AllOf(HasSubstr("pipeline rank 0"), HasSubstr("pipeline rank 1")));
}

}  // namespace
}  // namespace tessera::testing
