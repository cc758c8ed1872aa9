// The tool as a user runs it: a process, its exit status, what it prints and the files it leaves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/cli/sample_text.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {

using nlohmann::json;
inline std::vector<json> read_lines(const std::string& path) {
  std::vector<json> lines;
  std::istringstream text(read(path));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

class Tool : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string text = sample_text(600);
    folder_.write("text.txt", std::as_bytes(std::span(text)));
    const std::string config = R"([model]
layers = 2
heads = 2
channels = 16
context = 16
dropout = 0.1
attention_dropout = 0.1
[mesh]
shard = 2
[schedule]
kind = "cosine"
total_steps = 6
[run]
steps = 6
sequences = 2
length = 16
microbatches = 2
deadline = 20
[data]
train = ")" + folder_.file("text.txt") +
                               "\"\n";
    config_ = folder_.write("run.toml", std::as_bytes(std::span(config)));
    entries_ = folder_.entries();
  }

  // Its output goes to files beside the folder, so that the folder shows what the tool left.
  pid_t start(const Arguments& arguments, rlim_t file_limit = RLIM_INFINITY) const {
    Arguments all = {TESSERA_TOOL};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return start_process(all, printed(), file_limit);
  }
  Result finish(pid_t child) const { return finish_process(child, printed()); }
  Outputs printed() const { return {.out = outputs_.file("out"), .err = outputs_.file("err")}; }

  Result run(const Arguments& arguments) const { return finish(start(arguments)); }

  Result train(const Arguments& settings, const Arguments& more = {}) const {
    return run(train_arguments(settings, more));
  }
  Arguments train_arguments(const Arguments& settings, const Arguments& more = {}) const {
    Arguments all = {"train", config_};
    for (const std::string& setting : settings) all.insert(all.end(), {"--set", setting});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // The same training as one run and, saved between them, as two.
  struct Parts {
    Arguments saving;          // the settings of the second part
    std::string whole, parts;  // metrics
    Result ended, first, second;
  };

  static Arguments with(Arguments settings, const Arguments& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }

  // `always` is set in all three runs, `whole_only` in the whole one, `first_only` in the first part, which
  // ends after three steps; `suffix` tells the files of several such trainings apart.
  Parts run_in_parts(const Arguments& always = {}, const Arguments& whole_only = {},
                     const Arguments& first_only = {}, const std::string& suffix = "") const {
    Parts run{.saving = {},
              .whole = folder_.file("whole" + suffix),
              .parts = folder_.file("parts" + suffix),
              .ended = {},
              .first = {},
              .second = {}};
    run.saving = with(always, {"run.checkpoint=" + folder_.file("saved" + suffix), "run.metrics=" + run.parts,
                               "run.resume=auto"});
    run.ended = train(with(with(always, whole_only), {"run.metrics=" + run.whole}));
    if (run.ended.status == 0) run.first = train(with(with(run.saving, {"run.steps=3"}), first_only));
    if (run.first.status == 0) run.second = train(run.saving);
    return run;
  }

  // "tessera: …", one line, status 1, and no new file.
  void expect_refused(const Result& result, const Arguments& parts) const {
    EXPECT_EQ(result.status, 1) << result.err;
    EXPECT_EQ(result.err.rfind("tessera: ", 0), 0u) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const std::string& part : parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << "'" << part << "' is not in: " << result.err;
    EXPECT_EQ(folder_.entries(), entries_) << "something was left behind";
  }

  // The loss of every step in a metrics file, as it is written there: all digits.
  std::vector<std::string> losses(const std::string& metrics) const {
    std::vector<std::string> result;
    for (const json& line : read_lines(metrics))
      if (line.contains("loss")) result.push_back(line.at("step").dump() + " " + line.at("loss").dump());
    return result;
  }

  TemporaryFolder folder_, outputs_;
  std::string config_;
  std::ptrdiff_t entries_ = 0;
};

}  // namespace tessera::testing
