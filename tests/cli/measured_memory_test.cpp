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

// Bytes.
struct Memory {
  double predicted = 0, measured = 0;
};

Memory train(const TemporaryFolder& folder, const std::string& config, const std::string& more = "") {
  const std::string text = sample_text(2000);
  const std::string whole =
      config + "[data]\ntrain = \"" + folder.write("text.txt", std::as_bytes(std::span(text))) + "\"\n";
  const std::string command = std::string(TESSERA_TOOL) + " train " +
                              folder.write("run.toml", std::as_bytes(std::span(whole))) + more + " --json " +
                              folder.file("result.json") + " > " + folder.file("out") + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream in(folder.file("result.json"));
  const auto memory = nlohmann::json::parse(in).at("memory");
  return {.predicted = memory.at("predicted_bytes"), .measured = memory.at("measured_bytes")};
}

void train_and_compare(const std::string& parameters) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "shadow memory counts as resident";
#endif
  const TemporaryFolder folder;
  const Memory memory =
      train(folder, "[model]\npreset = \"gpt2-124m\"\n[precision]\nparameters = \"" + parameters +
                        "\"\n[run]\nsteps = 2\nlength = 64\nthreads_per_rank = 2\n");
  std::printf("gpt2-124m %s: predicted %.1f MiB, measured %.1f MiB\n", parameters.c_str(),
              memory.predicted / kMiB, memory.measured / kMiB);
  EXPECT_GT(memory.predicted, 1900 * kMiB);
  EXPECT_LT(memory.measured, 1.03 * memory.predicted + 24 * kMiB);
  EXPECT_GT(memory.measured, 0.97 * memory.predicted - 24 * kMiB);
}

// Without states of what is frozen.
TEST(MeasuredMemory, OneRankOfGpt2WithAdapters) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "shadow memory counts as resident";
#endif
  const TemporaryFolder folder;
  const Memory memory = train(folder,
                              "[model]\npreset = \"gpt2-124m\"\n[lora]\nrank = 16\ntargets = \"all-linear\"\n"
                              "[precision]\nparameters = \"fp32\"\n"
                              "[run]\nsteps = 2\nlength = 64\nthreads_per_rank = 2\n");
  std::printf("gpt2-124m with adapters: predicted %.1f MiB, measured %.1f MiB\n", memory.predicted / kMiB,
              memory.measured / kMiB);
  EXPECT_LT(memory.predicted, 800 * kMiB);
  EXPECT_LT(memory.measured, 1.03 * memory.predicted + 24 * kMiB);
  EXPECT_GT(memory.measured, 0.97 * memory.predicted - 24 * kMiB);
}

TEST(MeasuredMemory, OneRankOfGpt2InFp32) { train_and_compare("fp32"); }
TEST(MeasuredMemory, OneRankOfGpt2InBf16) { train_and_compare("bf16"); }

// Whose largest, the embedding's, take 32 MiB each: they go to a checkpoint and come from it in pieces.
TEST(MeasuredMemory, SavingAndLoadingStatesOnTheDisk) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "shadow memory counts as resident";
#endif
  const TemporaryFolder folder;
  const std::string config =
      "[model]\nvocabulary = 32768\ncontext = 64\nchannels = 256\nheads = 4\nlayers = 1\n"
      "logits_memory = 1000000\n[offload]\nstates = \"disk\"\nparameters = \"disk\"\ndirectory = \"" +
      folder.file("") + "\"\n[run]\nlength = 16\nsteps = 2\nresume = \"auto\"\n";
  const std::string saving = " --set run.checkpoint=" + folder.file("saved");
  const double alone = train(folder, config).measured;
  const double with_save = train(folder, config, saving).measured;
  const double with_load = train(folder, config, saving + " --set run.steps=3").measured;
  std::printf("training %.1f MiB, with a save %.1f MiB, with load and save %.1f MiB\n", alone / kMiB,
              with_save / kMiB, with_load / kMiB);
  // Pieces on their way; a unit's states held twice would be twice as much.
  EXPECT_LT(with_save, alone + 20 * kMiB);
  EXPECT_LT(with_load, alone + 20 * kMiB);
}

}  // namespace
}  // namespace tessera::testing
