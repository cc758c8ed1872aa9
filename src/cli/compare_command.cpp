// `tessera compare`: whether two runs compute the same bits, without running either.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/places.h"
#include "src/cli/report.h"
#include "src/cli/run_numerics.h"
#include "tessera/numeric_differences.h"

namespace tessera::cli {

namespace {

struct Side {
  const char* name;
  Setup setup;
  PlannedNumerics planned;

  Side(const char* name_of_side, const RunArguments& arguments)
      : name(name_of_side),
        setup(make_setup(load_config(arguments.config, arguments.settings, arguments.ranks))) {
    planned = planned_numerics(setup, plan_pipeline(*setup.model, setup.options));
  }
  void print(const std::string& config) const {
    fmt::print(
        "{}         {}  {}{}\n", name, fingerprint_of(planned.numerics), config,
        planned.why_not_opened.empty() ? "" : "; its data cannot be opened: " + planned.why_not_opened);
  }
};

// What the fingerprints leave out, and is not the same in both or not known.
std::vector<std::string> conditions(const Side& a, const Side& b) {
  std::vector<std::string> notes;
  const auto note = [&](const char* key, const auto& of_a, const auto& of_b) {
    if (of_a != of_b) notes.push_back(fmt::format("{} is {} in A and {} in B", key, of_a, of_b));
  };
  const RunConfig &run_a = a.setup.config.run, &run_b = b.setup.config.run;
  note("run.device", run_a.device, run_b.device);
  note("run.threads_per_rank", run_a.threads_per_rank, run_b.threads_per_rank);
  for (const Side* side : {&a, &b}) {
    const RunConfig& run = side->setup.config.run;
    if (!run.checkpoint.empty() && run.resume != "false")
      notes.push_back(fmt::format("{} may go on from a checkpoint in '{}'", side->name, run.checkpoint));
    if (!side->planned.why_not_opened.empty())
      notes.push_back(fmt::format("the data of {} could not be looked at", side->name));
  }
  if (a.setup.config.data.train != b.setup.config.data.train)
    notes.emplace_back("files of another name are told apart by their lengths and ends only");
  return notes;
}

}  // namespace

int compare_command(const CompareArguments& arguments, ResultFile& file) {
  file.open();
  const Side a("A", arguments.a), b("B", arguments.b);
  a.print(arguments.a.config);
  b.print(arguments.b.config);
  const Numerics &of_a = a.planned.numerics, &of_b = b.planned.numerics;
  const std::vector<NumericDifference> apart = differences(of_a, of_b);
  const bool equal = apart.empty();
  const std::vector<std::string> notes = conditions(a, b);
  nlohmann::json result = {
      {"a", numerics_json(of_a)}, {"b", numerics_json(of_b)}, {"equal", equal}, {"conditions", notes}};
  if (!equal) {
    const std::string words = in_words(apart[0], "in A", "in B");
    fmt::print("different {}{}\n", words,
               apart.size() > 1 ? fmt::format(" (and {} more)", apart.size() - 1) : "");
    result["difference"] = words;
  } else if (!notes.empty()) {
    fmt::print("equal     if this changes no bit: {} (docs/numerics.md)\n", fmt::join(notes, ", and "));
  } else {
    fmt::print(
        "equal     training losses, norms and weights are the same to the bit on equal machines and "
        "builds\n");
  }
  const std::vector<std::string> keys = differences(a.setup.config, b.setup.config);
  if (!keys.empty()) fmt::print("keys      {}\n", fmt::join(keys, ", "));
  result["keys"] = keys;
  file.write(result);
  return equal ? 0 : kDiffer;
}

}  // namespace tessera::cli
