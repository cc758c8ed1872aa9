// `tessera report`: what the page holds of runs, and which files are refused.
#include <filesystem>

#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

class ToolReport : public Tool {
 protected:
  // Trains into a folder as the page of documents says.
  std::string trained(const std::string& name, const Arguments& settings = {}) const {
    const std::string folder = folder_.file(name);
    std::filesystem::create_directories(folder);
    const Result result = train(with({"run.metrics=" + folder + "/metrics.jsonl", "run.evaluate_every=2",
                                      "data.validation_fraction=0.2"},
                                     settings),
                                {"--json", folder + "/result.json"});
    EXPECT_EQ(result.status, 0) << result.err;
    return folder;
  }
  std::string page() const { return folder_.file("page.html"); }
  Result report(Arguments runs) const {
    runs.insert(runs.begin(), "report");
    runs.insert(runs.end(), {"--html", page()});
    return run(runs);
  }
  // The data inside the page.
  json data() const {
    const std::string text = read(page());
    const std::string before = "const data = ";
    const std::size_t begin = text.find(before) + before.size(), end = text.find(";\nconst colors", begin);
    return json::parse(text.substr(begin, end - begin));
  }
  std::string file(const std::string& name, const std::string& text) const {
    return folder_.write(name, std::as_bytes(std::span(text)));
  }
};

TEST_F(ToolReport, HasTheCurvesMemoryAndConfigurationOfARun) {
  const std::string folder = trained("first");
  const Result result = report({folder});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("wrote " + page()), std::string::npos) << result.out;
  const json data = this->data();
  EXPECT_EQ(data["title"], "first");
  ASSERT_EQ(data["runs"].size(), 1u);
  const json& run = data["runs"][0];
  EXPECT_EQ(run["notes"], json::array());
  EXPECT_EQ(run["steps"]["step"], json({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(run["evaluations"]["step"], json({2, 4, 6}));
  const std::vector<json> lines = read_lines(folder + "/metrics.jsonl");
  EXPECT_EQ(run["steps"]["loss"][0], lines[0]["loss"]);
  EXPECT_EQ(run["evaluations"]["validation_loss"][0], lines[2]["validation_loss"]);
  // Measured in some steps only; a column is as long as the others.
  EXPECT_EQ(run["steps"]["hidden"].size(), 6u);
  EXPECT_TRUE(run["steps"]["hidden"][0].is_null());
  const json result_file = json::parse(read(folder + "/result.json"));
  EXPECT_EQ(run["memory"]["planned"], result_file["memory"]["predicted"]["arena_bytes"]);
  EXPECT_GT(run["memory"]["ratio"].get<double>(), 1.0);
  bool found = false;
  for (const json& row : data["configuration"])
    if (row["key"] == "schedule.total_steps") found = row["values"] == json({"6"});
  EXPECT_TRUE(found) << data["configuration"].dump();
  EXPECT_EQ(data["differences"], 0);
}

TEST_F(ToolReport, LaysRunsOverEachOtherAndSaysWhatDiffers) {
  const std::string first = trained("first"), second = trained("second", {"schedule.learning_rate=0.25"});
  // By the result alone, which names its metrics; by the metrics alone; and the same folder twice.
  const Result result =
      report({first, second + "/result.json", second + "/metrics.jsonl", "--title", "</script>"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(read(page()).find("</script>", read(page()).find("const data")), read(page()).rfind("</script>"))
      << "a title ends the script";
  const json data = this->data();
  EXPECT_EQ(data["title"], "</script>");
  ASSERT_EQ(data["runs"].size(), 3u);
  EXPECT_EQ(data["runs"][1]["name"], "second");
  EXPECT_EQ(data["runs"][2]["name"], "second (2)");
  EXPECT_EQ(data["runs"][1]["steps"], data["runs"][2]["steps"]);
  EXPECT_NE(result.out.find("second (2): it has no result yet"), std::string::npos) << result.out;
  const json& row = data["configuration"][0];
  EXPECT_TRUE(row["differs"]);
  bool found = false;
  for (const json& one : data["configuration"])
    if (one["key"] == "schedule.learning_rate")
      found = one["values"][1] == "0.25" && one["values"][2].is_null() && one["differs"];
  EXPECT_TRUE(found);
}

TEST_F(ToolReport, TakesARunThatStillWritesOrFailed) {
  const std::string running = file("running.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"lo");
  const std::string failed = file("failed.json", R"({"error": "rank 1: out of memory"})");
  const std::string lost =
      file("lost.json", R"({"steps": 3, "numerics": {}, "metrics": "/nowhere/m.jsonl"})");
  const Result result = report({running, failed, lost});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("failed: it failed: rank 1: out of memory"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("lost: its metrics, '/nowhere/m.jsonl', are not there."), std::string::npos)
      << result.out;
  EXPECT_EQ(data()["runs"][0]["steps"]["loss"], json({2.5}));
}

TEST_F(ToolReport, HasTheBalanceOfRanksAndEventsBesideTheMetrics) {
  const std::string events = folder_.file("events");
  const std::string folder = trained("first", {"run.tensorboard=" + events});
  const json line = read_lines(folder + "/metrics.jsonl").at(3);  // step 3, behind the evaluation of step 2
  ASSERT_EQ(line["step"], 3);
  EXPECT_GT(line["busy_least"].get<double>(), 0.0);
  EXPECT_LE(line["busy_least"].get<double>(), line["busy_most"].get<double>());
  EXPECT_NE(line["busy_least_rank"], line["busy_most_rank"]);
  const std::filesystem::directory_iterator files(events);
  EXPECT_GT(files->file_size(), 1000u);
  entries_ = folder_.entries();
  expect_refused(train({"run.tensorboard=" + folder + "/metrics.jsonl/below"}), {"run.tensorboard"});
}

TEST_F(ToolReport, RefusesWhatIsNoRun) {
  const std::string text = file("notes.txt", "some notes\n"), empty = file("empty.jsonl", "");
  const std::string broken =
      file("broken.jsonl", "{\"step\":1,\"loss\":2.5}\nnonsense\n{\"step\":2,\"loss\":2}\n");
  std::filesystem::create_directories(folder_.file("nothing"));
  entries_ = folder_.entries();
  expect_refused(report({folder_.file("absent")}), {"absent' is not there"});
  expect_refused(report({text}), {"line 1 of '", "notes.txt' is not of a run's metrics"});
  expect_refused(report({empty}), {"empty.jsonl' is empty"});
  expect_refused(report({broken}), {"line 2 of '", "broken.jsonl'"});
  expect_refused(report({folder_.file("nothing")}), {"has neither metrics.jsonl nor result.json"});
  const Result without = run({"report", text});
  EXPECT_EQ(without.status, 2);
  EXPECT_NE(without.err.find("--html"), std::string::npos) << without.err;
}

}  // namespace
}  // namespace tessera::testing
