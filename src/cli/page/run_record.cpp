#include "src/cli/page/run_record.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include "src/cli/files.h"
#include "src/cli/output.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kMetricsName = "metrics.jsonl";
constexpr const char* kResultName = "result.json";

std::string text_of(const fs::path& path) {
  const std::optional<std::string> text = read_text(path);
  if (!text) throw EnvironmentError(fmt::format("report: '{}' is not there", escaped(path.string())));
  return *text;
}

// Lines of metrics become columns: each field's values stand where its lines do.
class Columns {
 public:
  void add(const json& line) {
    for (const auto& [key, value] : line.items()) {
      json& column = columns_[key];
      if (column.is_null()) column = json::array();
      while (column.size() < lines_) column.push_back(nullptr);
      column.push_back(value.is_boolean()  ? json(value.get<bool>() ? 1 : 0)
                       : value.is_number() ? value
                                           : json());
    }
    ++lines_;
  }
  json take() {
    for (auto& [key, column] : columns_.items())
      while (column.size() < lines_) column.push_back(nullptr);
    return std::move(columns_);
  }

 private:
  json columns_ = json::object();
  std::size_t lines_ = 0;
};

bool is_metrics_line(const json& line) {
  return line.is_object() && line.contains("step") && line["step"].is_number_integer();
}

void read_metrics(const fs::path& path, const std::string& text, RunRecord& run) {
  Columns steps, evaluations;
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const json parsed = json::parse(line, nullptr, false);
    if (!is_metrics_line(parsed)) {
      if (in.eof() && number > 1) break;  // without its end: the run still writes it
      throw UsageError(
          fmt::format("report: line {} of '{}' is not of a run's metrics", number, escaped(path.string())));
    }
    if (parsed.contains("loss"))
      steps.add(parsed);
    else if (parsed.contains("validation_loss"))
      evaluations.add(parsed);
  }
  run.steps = steps.take();
  run.evaluations = evaluations.take();
}

// As a person would write it: the shortest number that is the same, and text without quotes.
std::string value_text(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto number = node.value_exact<double>()) return fmt::format("{}", *number);
  std::ostringstream other;
  node.visit([&](const auto& of) { other << of; });
  return other.str();
}

void flatten(const toml::table& table, const std::string& before, RunRecord& run) {
  for (const auto& [key, node] : table) {
    const std::string name = before + std::string(key.str());
    if (const toml::table* inner = node.as_table()) {
      flatten(*inner, name + ".", run);
      continue;
    }
    run.configuration.emplace_back(name, value_text(node));
  }
}

// A result's metrics are where it says, or beside it where the folder was moved.
std::optional<fs::path> metrics_of(const fs::path& result, const json& of) {
  const std::string named = of.value("metrics", "");
  if (named.empty()) return std::nullopt;
  for (const fs::path& path : {fs::path(named), result.parent_path() / fs::path(named).filename()}) {
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return path;
  }
  return std::nullopt;
}

void read_result(const fs::path& path, const json& result, RunRecord& run) {
  if (result.contains("error")) {
    run.notes.push_back(fmt::format("it failed: {}", result.value("error", "")));
    return;
  }
  run.result = result;
  if (const std::string text = result.value("configuration", ""); !text.empty()) {
    try {
      flatten(toml::parse(text), "", run);
    } catch (const toml::parse_error&) {
      run.notes.push_back("the configuration in its result cannot be read.");
    }
  }
  if (result.value("interrupted", false)) run.notes.push_back("a signal ended it.");
  if (!run.steps.empty()) return;
  if (const std::optional<fs::path> metrics = metrics_of(path, result))
    read_metrics(*metrics, text_of(*metrics), run);
  else
    run.notes.push_back(result.value("metrics", "").empty()
                            ? "it wrote no metrics (run.metrics), so there are no curves."
                            : fmt::format("its metrics, '{}', are not there.", result.value("metrics", "")));
}

void read_file(const fs::path& path, RunRecord& run) {
  const std::string text = text_of(path);
  const json whole = json::parse(text, nullptr, false);
  if (whole.is_object() &&
      (whole.contains("error") || (whole.contains("steps") && whole.contains("numerics"))))
    return read_result(path, whole, run);
  if (text.empty()) throw UsageError(fmt::format("report: '{}' is empty", escaped(path.string())));
  read_metrics(path, text, run);
}

void read_folder(const fs::path& folder, RunRecord& run) {
  const fs::path metrics = folder / kMetricsName, result = folder / kResultName;
  const bool has_metrics = fs::exists(metrics), has_result = fs::exists(result);
  if (!has_metrics && !has_result)
    throw UsageError(fmt::format(
        "report: '{}' has neither {} nor {}; name a run's metrics or result, or a folder that has "
        "them under these names",
        escaped(folder.string()), kMetricsName, kResultName));
  if (has_metrics) read_metrics(metrics, text_of(metrics), run);
  if (has_result) read_file(result, run);
}

// Files of these names tell nothing, so their folder does.
std::string name_of_run(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path file = whole.filename().empty() ? whole.parent_path().filename() : whole.filename();
  if (file != kMetricsName && file != kResultName)
    return fs::is_directory(path) ? file.string() : file.stem().string();
  return whole.parent_path().filename().string();
}

}  // namespace

std::vector<RunRecord> read_runs(const std::vector<std::string>& paths) {
  std::vector<RunRecord> runs;
  std::set<std::string> names;
  for (const std::string& path : paths) {
    RunRecord& run = runs.emplace_back();
    std::string name = name_of_run(path);
    for (int again = 2; !names.insert(name).second; ++again)
      name = fmt::format("{} ({})", name_of_run(path), again);
    run.name = name;
    if (fs::is_directory(path))
      read_folder(path, run);
    else
      read_file(path, run);
    if (run.result.is_null() && run.notes.empty())
      run.notes.push_back("it has no result yet (--json), so memory and configuration are not known.");
  }
  return runs;
}

}  // namespace tessera::cli
