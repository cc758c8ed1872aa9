// `tessera compare`: whether two runs compute the same bits, without running either.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/places.h"
#include "src/cli/report.h"
#include "src/cli/run_numerics.h"

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

// What the fingerprints leave out, and is not the same in both.
std::vector<std::string> conditions(const Side& a, const Side& b) {
  std::vector<std::string> notes;
  const auto note = [&](const char* key, const auto& of_a, const auto& of_b) {
    if (of_a != of_b) notes.push_back(fmt::format("{} is {} in A and {} in B", key, of_a, of_b));
  };
  note("run.device", a.setup.config.run.device, b.setup.config.run.device);
  note("run.threads_per_rank", a.setup.config.run.threads_per_rank, b.setup.config.run.threads_per_rank);
  return notes;
}

std::size_t facts_apart(const std::vector<NumericFact>& a, const std::vector<NumericFact>& b) {
  std::size_t apart = std::max(a.size(), b.size()) - std::min(a.size(), b.size());
  for (std::size_t k = 0; k < std::min(a.size(), b.size()); ++k) apart += a[k] == b[k] ? 0 : 1;
  return apart;
}

}  // namespace

int compare_command(const CompareArguments& arguments, ResultFile& file) {
  file.open();
  const Side a("A", arguments.a), b("B", arguments.b);
  a.print(arguments.a.config);
  b.print(arguments.b.config);
  const Numerics &of_a = a.planned.numerics, &of_b = b.planned.numerics;
  const std::optional<NumericDifference> difference = first_difference(of_a, of_b);
  const std::vector<std::string> notes = conditions(a, b);
  nlohmann::json result = {
      {"a", numerics_json(of_a)}, {"b", numerics_json(of_b)}, {"equal", !difference}, {"conditions", notes}};
  if (difference) {
    const std::string words = in_words(*difference, "in A", "in B");
    const std::size_t more = facts_apart(of_a.program, of_b.program) + facts_apart(of_a.run, of_b.run) - 1;
    fmt::print("different {}{}\n", words, more > 0 ? fmt::format(" (and {} more)", more) : "");
    result["difference"] = words;
  } else if (!notes.empty()) {
    fmt::print("equal     but {}, which may change bits (docs/numerics.md)\n", fmt::join(notes, ", and "));
  } else {
    fmt::print("equal     losses, norms and weights are the same to the bit on equal machines and builds\n");
  }
  const std::vector<std::string> keys = differences(a.setup.config, b.setup.config);
  if (!keys.empty()) fmt::print("keys      {}\n", fmt::join(keys, ", "));
  result["keys"] = keys;
  file.write(result);
  return difference ? kDiffer : 0;
}

}  // namespace tessera::cli
