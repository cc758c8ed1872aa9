// A run as its files tell it: the metrics that it wrote line by line, and the result that it wrote at its
// end.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera::cli {

struct RunRecord {
  std::string name;                // unique among the runs that are read together
  std::vector<std::string> notes;  // what is missing or out of the ordinary, a sentence each
  // A column for each field, {"step": [1, 2, …], "loss": […], …}: null where a line lacks it. Empty objects
  // where there are no lines.
  nlohmann::json steps = nlohmann::json::object();
  nlohmann::json evaluations = nlohmann::json::object();
  nlohmann::json result;  // as `tessera train --json` wrote it; null where there is none
  std::vector<std::pair<std::string, std::string>> configuration;  // keys and values; empty if not known
};

// Reads runs, each named by the file of its metrics, by that of its result, or by a folder that has them as
// metrics.jsonl and result.json. A result also leads to the metrics that it names. Throws UsageError naming
// the path if it is none of these, and EnvironmentError if it cannot be read. A last line that is cut off, as
// of a run that still writes, is left out.
std::vector<RunRecord> read_runs(const std::vector<std::string>& paths);

}  // namespace tessera::cli
