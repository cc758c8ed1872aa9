// Options of the command line beside the keys of the configuration: which counts, and which is named.
#include <gmock/gmock.h>

#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(Tool, RanksAreASettingAmongTheOthers) {
  const auto ranks = [&](const Arguments& options) {
    Arguments all = {"plan", config_, "--json", folder_.file("json")};
    all.insert(all.end(), options.begin(), options.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(read(folder_.file("json"))).at("ranks").get<int>();
  };
  EXPECT_EQ(ranks({"--ranks", "4", "--set", "mesh.shard=3"}), 3);
  EXPECT_EQ(ranks({"--set", "mesh.shard=3", "--ranks", "4"}), 4);
  EXPECT_EQ(ranks({"--set", "mesh.shard=3", "--set", "mesh.shard=1", "--set=run.steps=3"}), 1);
  EXPECT_EQ(ranks({"--ranks", "4", "--set", "mesh.replicate=2"}), 8);
}

TEST_F(Tool, NamesRanksByOptionAndKey) {
  for (const char* wrong : {"0", "-3", "two", "1.5", "5000000000"}) {
    const Result result = run({"plan", config_, "--ranks", wrong});
    EXPECT_EQ(result.status, 2) << wrong;
    EXPECT_THAT(result.err,
                HasSubstr("--ranks: " + std::string(wrong) + " is no number of ranks: mesh.shard"));
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
      EXPECT_THAT(result.err, HasSubstr(": " + wrong + " is no number of at least 0\n"));
    }
  EXPECT_EQ(run({"simulate", config_, "--inner-latency", "0"}).status, 0);
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

}  // namespace
}  // namespace tessera::testing
