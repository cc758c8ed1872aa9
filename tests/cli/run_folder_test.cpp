// A run's folder as a user meets it: one run saves there, a fresh one starts in no used one, and what is
// damaged or cannot be read is said, not passed over.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/process.h"
#include "tests/cli/sample_text.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
class RunFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string text = sample_text(600);
    const std::string data = folder_.write("text.txt", std::as_bytes(std::span(text)));
    const std::string config =
        "model = {layers = 1, heads = 2, channels = 16, context = 16}\n"
        "mesh = {shard = 2}\n"
        "strategy = {stage = 3}\n"
        "run = {sequences = 1, length = 16, steps = 4, checkpoint_every = 2, deadline = 20, checkpoint = \"" +
        saved_ + "\", metrics = \"" + metrics_ + "\"}\ndata = {train = \"" + data + "\"}\n";
    config_ = folder_.write("run.toml", std::as_bytes(std::span(config)));
  }

  pid_t start(Arguments arguments, const std::string& name) const {
    arguments.insert(arguments.begin(), TESSERA_TOOL);
    return start_process(std::move(arguments), printed(name));
  }
  Result finish(pid_t child, const std::string& name) const { return finish_process(child, printed(name)); }
  Outputs printed(const std::string& name) const {
    return {.out = folder_.file(name + ".out"), .err = folder_.file(name + ".err")};
  }
  Result run(const Arguments& arguments) const { return finish(start(arguments, "tool"), "tool"); }
  Arguments training(const Arguments& settings) const {
    Arguments all = {"train", config_};
    for (const std::string& setting : settings) all.insert(all.end(), {"--set", setting});
    return all;
  }
  Result train(const Arguments& settings) const { return run(training(settings)); }

  // Refused in one line that mentions these, with every file as it was.
  void expect_refused(const Result& result, const Arguments& parts) const {
    EXPECT_EQ(result.status, 1) << result.out << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const std::string& part : parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << "'" << part << "' is not in: " << result.err;
  }

  TemporaryFolder folder_;
  const std::string saved_ = folder_.file("saved"), metrics_ = folder_.file("metrics");
  std::string config_;
};

TEST_F(RunFolder, AFreshRunIsRefusedWhereThereAreCheckpoints) {
  ASSERT_EQ(train({}).status, 0);
  const std::string metrics = read(metrics_);
  EXPECT_NE(metrics, "");
  expect_refused(train({"run.steps=2"}), {"run.checkpoint", "step-00000004", "run.resume is false", "auto"});
  EXPECT_EQ(read(metrics_), metrics);
  EXPECT_TRUE(fs::exists(saved_ + "/step-00000002"));
  for (const char* resume : {"true", "auto"}) {
    const Result result = train({"run.steps=6", std::string("run.resume=") + resume});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("resumed   at step "), std::string::npos) << result.out;
  }
  fs::remove_all(saved_);
  EXPECT_EQ(train({"run.resume=auto"}).status, 0);
  EXPECT_FALSE(fs::exists(saved_ + "/lock"));
}

TEST_F(RunFolder, ASecondRunIsRefusedWhileOneSavesThere) {
  const pid_t child = start(training({"run.steps=1000000", "run.resume=auto"}), "first");
  for (int i = 0; i < 2000 && !fs::exists(saved_ + "/latest"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  for (const char* resume : {"false", "true", "auto"})
    expect_refused(train({std::string("run.resume=") + resume}),
                   {"another run is saving", saved_, "process " + std::to_string(child)});
  EXPECT_EQ(run({"checkpoint", "inspect", saved_}).status, 0);
  ::kill(child, SIGKILL);
  EXPECT_EQ(finish(child, "first").status, -SIGKILL);
  // What a killed run leaves blocks nothing.
  EXPECT_TRUE(fs::exists(saved_ + "/lock"));
  const Result next = train({"run.steps=2000000", "run.seconds=0.2", "run.resume=true"});
  EXPECT_EQ(next.status, 0) << next.err;
  EXPECT_FALSE(fs::exists(saved_ + "/lock"));
}

TEST_F(RunFolder, AnUnusableNewestCheckpointIsNotPassedOver) {
  ASSERT_EQ(train({}).status, 0);
  fs::remove(saved_ + "/step-00000004/rank-00000.tessera");
  for (const char* command : {"inspect", "verify"})
    expect_refused(run({"checkpoint", command, saved_}), {"step-00000004", "rank-00000.tessera", "missing"});
  for (const char* resume : {"false", "true", "auto"})
    expect_refused(train({std::string("run.resume=") + resume}), {"step-00000004", "rank-00000.tessera"});
  EXPECT_EQ(run({"checkpoint", "verify", saved_ + "/step-00000002"}).status, 0);
}

// Where a run would save, and no later one look.
TEST_F(RunFolder, AStepsOwnFolderIsNoPlaceToSave) {
  ASSERT_EQ(train({}).status, 0);
  const std::string step = saved_ + "/step-00000002";
  for (const std::string& path : {step, step + "/"})
    for (const char* resume : {"false", "true", "auto"})
      expect_refused(train({"run.checkpoint=" + path, std::string("run.resume=") + resume, "run.steps=6"}),
                     {"run.checkpoint, '" + path + "', is one checkpoint", "name '" + saved_ + "'",
                      "step-00000002, into the file '" + saved_ + "/latest'"});
  EXPECT_EQ(std::distance(fs::directory_iterator(step), fs::directory_iterator()), 2);
  // What is advised works, and what was saved behind it is the first to go.
  std::ofstream(saved_ + "/latest") << "step-00000002\n";
  const Result result = train({"run.resume=true", "run.steps=3"});
  EXPECT_NE(result.out.find("resumed   at step 2"), std::string::npos) << result.out << result.err;
  EXPECT_TRUE(fs::exists(saved_ + "/step-00000003"));
  EXPECT_TRUE(fs::exists(step));
  EXPECT_FALSE(fs::exists(saved_ + "/step-00000004"));
}

TEST_F(RunFolder, AFolderThatCannotBeReadIsNoFreshStart) {
  std::ofstream(saved_) << "no folder";
  for (const char* resume : {"false", "true", "auto"})
    expect_refused(train({std::string("run.resume=") + resume}), {saved_});
  fs::remove(saved_);
  fs::create_directories(saved_);
  std::ofstream(saved_ + "/step-00000004") << "no folder";
  expect_refused(train({"run.resume=auto"}), {"step-00000004", "Not a directory"});
  EXPECT_FALSE(fs::exists(metrics_));
}

TEST_F(RunFolder, VerifyRefusesAMissingFileThatInspectTells) {
  ASSERT_EQ(train({}).status, 0);
  EXPECT_EQ(run({"checkpoint", "verify", saved_}).status, 0);
  fs::remove(saved_ + "/step-00000004/rank-00001.tessera");
  expect_refused(run({"checkpoint", "verify", saved_}), {"rank-00001.tessera", "is missing"});
  const Result told = run({"checkpoint", "inspect", saved_});
  EXPECT_EQ(told.status, 0) << told.err;
  EXPECT_NE(told.out.find("problem     checkpoint file '" + saved_), std::string::npos) << told.out;
}

}  // namespace
}  // namespace tessera::testing
