// Runs that start from weights: their configuration says nothing of the model.
#pragma once

#include <filesystem>
#include <fstream>

#include "tests/cli/tool.h"

namespace tessera::testing {

class WeightsTool : public Tool {
 protected:
  // `more` are further sections of the configuration.
  void set_up(int steps, const std::string& more = "") {
    Tool::SetUp();
    const std::string config = "[run]\nsteps = " + std::to_string(steps) + R"(
sequences = 2
length = 8
deadline = 20
[data]
train = ")" + folder_.file("text.txt") +
                               "\"\n" + more;
    config_ = folder_.write("bare.toml", std::as_bytes(std::span(config)));
    entries_ = folder_.entries();
  }

  // The folder of that name, with what a run of `settings` exports.
  std::string exported(const Arguments& settings, const std::string& name) {
    std::string folder = folder_.file(name);
    std::filesystem::remove_all(folder);
    const Result made = train(with(settings, {"run.export=" + folder}));
    EXPECT_EQ(made.status, 0) << made.err;
    entries_ = folder_.entries();
    return folder;
  }

  // Gives keys of a JSON file other values.
  static void change(const std::string& file, const json& changes) {
    json values = json::parse(read(file));
    values.update(changes);
    std::ofstream(file) << values;
  }
};

}  // namespace tessera::testing
