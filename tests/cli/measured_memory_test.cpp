// The plan against the operating system: how much the process grows at its peak while it trains gpt2-124m on
// one rank, beside what was predicted before the first step.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/cli/sample_text.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

void train_and_compare(const std::string& parameters) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "shadow memory counts as resident";
#endif
  TemporaryFolder folder;
  const std::string text = sample_text(2000);
  folder.write("text.txt", std::as_bytes(std::span(text)));
  const std::string config = "[model]\npreset = \"gpt2-124m\"\n[precision]\nparameters = \"" + parameters +
                             "\"\n[run]\nsteps = 2\nlength = 64\nthreads_per_rank = 2\n[data]\ntrain = \"" +
                             folder.file("text.txt") + "\"\n";
  folder.write("run.toml", std::as_bytes(std::span(config)));
  const std::string json_file = folder.file("result.json");
  const std::string command = std::string(TESSERA_TOOL) + " train " + folder.file("run.toml") + " --json " +
                              json_file + " > " + folder.file("out") + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ifstream in(json_file);
  const auto memory = nlohmann::json::parse(in).at("memory");
  const double predicted = memory.at("predicted_bytes").get<double>();
  const double measured = memory.at("measured_bytes").get<double>();
  std::printf("gpt2-124m %s: predicted %.1f MiB, measured %.1f MiB\n", parameters.c_str(), predicted / kMiB,
              measured / kMiB);
  EXPECT_GT(predicted, 1900 * kMiB);
  EXPECT_LT(measured, 1.03 * predicted + 24 * kMiB);
  EXPECT_GT(measured, 0.97 * predicted - 24 * kMiB);
}

TEST(MeasuredMemory, OneRankOfGpt2InFp32) { train_and_compare("fp32"); }
TEST(MeasuredMemory, OneRankOfGpt2InBf16) { train_and_compare("bf16"); }

}  // namespace
}  // namespace tessera::testing
