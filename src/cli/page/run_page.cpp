#include "src/cli/page/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/cli/output.h"
#include "src/cli/page/run_page_html.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

constexpr const char* kUnknown = "–";

// The last value of a column that is one; null where there is none.
json last_of(const json& columns, const char* name) {
  if (!columns.contains(name)) return nullptr;
  const json& column = columns[name];
  for (std::size_t k = column.size(); k-- > 0;)
    if (!column[k].is_null()) return column[k];
  return nullptr;
}

// The mean over a column's later half, as the first steps are slower.
json later_mean(const json& columns, const char* name) {
  if (!columns.contains(name)) return nullptr;
  const json& column = columns[name];
  double sum = 0;
  int count = 0;
  for (std::size_t k = column.size() / 2; k < column.size(); ++k)
    if (column[k].is_number()) sum += column[k].get<double>(), ++count;
  return count == 0 ? json() : json(sum / count);
}

json first_known(const json& a, const json& b) { return a.is_null() ? b : a; }
json of_result(const RunRecord& run, const char* name) {
  return run.result.is_object() && run.result.contains(name) ? run.result[name] : json();
}

std::string in_words(const json& value, const std::function<std::string(double)>& text) {
  return value.is_number() ? text(value.get<double>()) : kUnknown;
}

std::string whole(double value) { return count(static_cast<std::int64_t>(std::llround(value))); }

struct Column {
  const char* name;
  std::function<std::string(const RunRecord&)> text;
};

// The columns of the table at the top. One that no run knows is left out.
const std::vector<Column>& columns() {
  static const std::vector<Column> all = {
      {"steps",
       [](const RunRecord& run) {
         return in_words(first_known(of_result(run, "steps"), last_of(run.steps, "step")), whole);
       }},
      {"tokens", [](const RunRecord& run) { return in_words(last_of(run.steps, "tokens"), whole); }},
      {"time",
       [](const RunRecord& run) {
         return in_words(first_known(of_result(run, "seconds"), last_of(run.steps, "seconds")), duration);
       }},
      {"tokens/s",
       [](const RunRecord& run) {
         return in_words(
             first_known(of_result(run, "tokens_per_second"), later_mean(run.steps, "tokens_per_second")),
             whole);
       }},
      {"loss",
       [](const RunRecord& run) {
         return in_words(first_known(last_of(run.steps, "loss"), of_result(run, "loss")), loss_text);
       }},
      {"validation",
       [](const RunRecord& run) {
         return in_words(
             first_known(last_of(run.evaluations, "validation_loss"), of_result(run, "validation_loss")),
             loss_text);
       }},
      {"skipped", [](const RunRecord& run) { return in_words(of_result(run, "skipped"), whole); }},
      {"ranks", [](const RunRecord& run) { return in_words(of_result(run, "ranks"), whole); }},
      {"parameters", [](const RunRecord& run) { return in_words(of_result(run, "parameter_numel"), whole); }},
      {"fingerprint", [](const RunRecord& run) {
         const json numerics = of_result(run, "numerics");
         return numerics.is_object() ? numerics.value("fingerprint", kUnknown) : kUnknown;
       }}};
  return all;
}

// A rank's planned bytes by category, in memory, beside what was measured.
json memory_of(const RunRecord& run) {
  const json memory = of_result(run, "memory");
  if (!memory.is_object() || !memory.contains("predicted")) return nullptr;
  json parts = json::array();
  double planned = 0;
  for (const auto& [key, before] : {std::pair{"predicted", ""}, std::pair{"predicted_host", "host: "}}) {
    if (!memory.contains(key)) continue;
    const json& space = memory[key];
    planned += space.value("arena_bytes", 0.0);
    for (const auto& [category, bytes] : space["categories"].items())
      if (bytes.get<double>() > 0) parts.push_back({{"name", before + category}, {"bytes", bytes}});
  }
  const double all = memory.value("predicted_bytes", 0.0), measured = memory.value("measured_bytes", 0.0);
  const double ranks = of_result(run, "ranks").is_number() ? of_result(run, "ranks").get<double>() : 1.0;
  json found = {{"parts", parts}, {"planned", planned}};
  if (measured > 0 && all > 0) {
    found["measured"] = measured / ranks;
    found["ratio"] = measured / all;
  }
  return found;
}

// Keys in the order in which the runs have them, with each run's value.
json configuration_of(std::span<const RunRecord> runs) {
  std::vector<std::string> keys;
  std::vector<std::map<std::string, std::string>> values;
  for (const RunRecord& run : runs) {
    std::map<std::string, std::string>& of = values.emplace_back();
    for (const auto& [key, value] : run.configuration) {
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
      of[key] = value;
    }
  }
  json table = json::array();
  for (const std::string& key : keys) {
    json row = json::array();
    for (const auto& of : values) row.push_back(of.contains(key) ? json(of.at(key)) : json());
    const bool differs = std::ranges::any_of(row, [&](const json& value) { return value != row[0]; });
    table.push_back({{"key", key}, {"values", row}, {"differs", differs}});
  }
  // Those that differ first; else in their order.
  std::stable_sort(table.begin(), table.end(), [](const json& a, const json& b) {
    return a["differs"].get<bool>() && !b["differs"].get<bool>();
  });
  return table;
}

json data_of(std::span<const RunRecord> runs, const std::string& title) {
  json data = {{"title", title}, {"runs", json::array()}, {"columns", json::array()}};
  std::vector<const Column*> shown;
  for (const Column& column : columns()) {
    if (std::ranges::all_of(runs, [&](const RunRecord& run) { return column.text(run) == kUnknown; }))
      continue;
    shown.push_back(&column);
    data["columns"].push_back(column.name);
  }
  for (const RunRecord& run : runs) {
    json summary = json::array();
    for (const Column* column : shown) summary.push_back(column->text(run));
    data["runs"].push_back({{"name", run.name},
                            {"notes", run.notes},
                            {"summary", summary},
                            {"steps", run.steps},
                            {"evaluations", run.evaluations},
                            {"memory", memory_of(run)}});
  }
  data["configuration"] = configuration_of(runs);
  data["differences"] = std::ranges::count_if(data["configuration"],
                                              [](const json& row) { return row["differs"].get<bool>(); });
  return data;
}

}  // namespace

std::string run_page(std::span<const RunRecord> runs, const std::string& title) {
  std::string text = data_of(runs, title).dump(-1, ' ', true, json::error_handler_t::replace);
  // Inside a script element only "</" could end it.
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3)
    text.insert(at + 1, 1, '\\');
  std::string page(kRunPage);
  constexpr std::string_view kPlace = "__DATA__";
  page.replace(page.find(kPlace), kPlace.size(), text);
  return page;
}

}  // namespace tessera::cli
