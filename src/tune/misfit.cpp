// Why a plan is refused, and which changes of strategy would make it fit.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "src/build/builder.h"
#include "src/simulate/step_time.h"
#include "src/tune/strategy_changes.h"
#include "tessera/budget.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr std::size_t kListed = 3, kCollected = 2 * kListed;
// Instructions planned behind which no further set of changes is looked for where one was found, or where
// it would be of some of the units.
constexpr std::size_t kFewPlanned = 100'000;

using Chosen = std::vector<std::size_t>;  // of the changes, ascending

struct Outcome {
  Chosen changes;
  std::vector<std::string> words;
  IdArray<std::int64_t, kSpaces> bytes = {};  // of the pipeline rank that needs most
  double step_us = 0;
};

// "stage 3, offload.parameters = host" where stage 3 is enough.
bool says_more_than_needed(const Outcome& outcome, const std::vector<Outcome>& found) {
  return std::ranges::any_of(found, [&](const Outcome& other) {
    return other.words.size() < outcome.words.size() &&
           std::ranges::all_of(other.words, [&](const std::string& word) {
             return std::ranges::find(outcome.words, word) != outcome.words.end();
           });
  });
}

class Search {
 public:
  Search(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
         const MemoryBudget& budget, const CostModel& cost)
      : layout_(layout),
        mesh_(mesh),
        specs_(specs),
        budget_(budget),
        cost_(cost),
        changes_(strategy_changes(units(), more_resident())) {}

  // Those that fit by themselves; where these are few, sets of the others of which each is needed.
  std::vector<Outcome> fitting() {
    std::vector<Outcome> found;
    Chosen others;
    for (std::size_t change = 0; change < changes_.size(); ++change) {
      if (changes_[change].part == StrategyPart::share && !two_budgets()) continue;
      const std::optional<Outcome>& alone = attempt({change});
      alone ? add(*alone, found) : others.push_back(change);
    }
    const std::vector<Outcome> all = found;
    std::erase_if(found, [&](const Outcome& outcome) { return says_more_than_needed(outcome, all); });
    std::ranges::stable_sort(found, {}, &Outcome::step_us);
    if (found.size() < kListed && something_may_fit()) {
      const auto alone = static_cast<std::ptrdiff_t>(found.size());
      add_together(others, found);
      std::ranges::stable_sort(found.begin() + alone, found.end(), {}, &Outcome::step_us);
    }
    if (found.size() > kListed) found.resize(kListed);
    std::ranges::stable_sort(found, {}, &Outcome::step_us);
    return found;
  }

  double step_us_as_it_is() const { return step_us(layout_, mesh_, plans_of(specs_, {}).programs, cost_); }

 private:
  struct Plans {
    std::vector<Program> programs = {};  // the first of each pipeline rank
    IdArray<std::int64_t, kSpaces> bytes = {};
    std::size_t instructions = 0;
    bool fit = true;
  };

  // Of outcomes that differ in how many units alone, the fastest.
  static void add(const Outcome& outcome, std::vector<Outcome>& found) {
    const auto kind_of = [](std::vector<std::string> words) {
      for (std::string& word : words)
        if (word.starts_with("strategy.resident_units") || word.starts_with("offload.states_on_device"))
          word.resize(word.find(' '));
      return words;
    };
    const auto same = std::ranges::find_if(
        found, [&](const Outcome& other) { return kind_of(other.words) == kind_of(outcome.words); });
    if (same == found.end())
      found.push_back(outcome);
    else if (outcome.step_us < same->step_us)
      *same = outcome;
  }

  // What of `others` goes together, the fewest places changed first; of each combination of places with all
  // that saves memory, the changes that are needed.
  void add_together(const Chosen& others, std::vector<Outcome>& found) {
    for (const bool some : {false, true}) {
      if (some && !found.empty()) return;
      for (const Chosen& combination : combinations(others, some)) {
        if (found.size() >= kCollected || ((some || !found.empty()) && planned_ > kFewPlanned)) return;
        Chosen all = without_any_of(found, combination);
        // Buffers of less that is made again may happen to be packed better.
        if (!attempt(all))
          std::erase_if(all, [&](std::size_t change) { return changes_[change].makes_all_again; });
        if (!attempt(all)) continue;
        const Outcome needed = *attempt(needed_of(all));
        if (!says_more_than_needed(needed, found)) add(needed, found);
      }
    }
  }

  // Less of what saves memory, so that it does not lead to what was found before; nothing where it must.
  Chosen without_any_of(const std::vector<Outcome>& found, Chosen all) const {
    for (const Outcome& outcome : found) {
      if (!std::ranges::includes(all, outcome.changes)) continue;
      const auto dearest =
          std::ranges::find(outcome.changes.rbegin(), outcome.changes.rend(), StrategyPart::saving,
                            [&](std::size_t change) { return changes_[change].part; });
      if (dearest == outcome.changes.rend()) return {};
      std::erase(all, *dearest);
    }
    return all;
  }

  // All that saves memory, with at most one change of each other part; of the stage the last. Those of some
  // of the units, or those without. Where the host may hold any amount, nothing need go further, or come
  // back, but for activations, whose copies take room on the device.
  std::vector<Chosen> combinations(const Chosen& others, bool some) const {
    std::vector<Chosen> all = {{}};
    for (const std::size_t change : others)
      if (changes_[change].part == StrategyPart::saving) all[0].push_back(change);
    for (const StrategyPart part : {StrategyPart::stage, StrategyPart::states, StrategyPart::activations,
                                    StrategyPart::parameters, StrategyPart::resident, StrategyPart::share}) {
      const bool place = part == StrategyPart::states || part == StrategyPart::activations ||
                         part == StrategyPart::parameters;
      const bool any_host = budget_.host_bytes == 0;
      Chosen of_part;
      for (const std::size_t change : others) {
        const StrategyChange& what = changes_[change];
        if (what.part != part || (what.some && !some)) continue;
        if (any_host && place && what.to != Space::host && part != StrategyPart::activations) continue;
        if (part == StrategyPart::stage) of_part.clear();
        of_part.push_back(change);
      }
      const std::vector<Chosen> without = all;
      for (const std::size_t change : of_part)
        for (Chosen with : without) {
          with.insert(std::ranges::upper_bound(with, change), change);
          all.push_back(std::move(with));
        }
    }
    std::ranges::stable_sort(all, {}, &Chosen::size);
    return all;
  }

  // Else states are best in one place.
  bool two_budgets() const { return budget_.device_bytes > 0 && budget_.host_bytes > 0; }

  // Whether the device holds some of what may take the least of it: all that saves its memory at once, with
  // states, parameters and activations in each place, and none, all or as many units resident as now. How
  // buffers are packed decides which of these it is.
  bool something_may_fit() const {
    if (budget_.device_bytes == 0) return true;
    const MemoryBudget device = {.device_bytes = budget_.device_bytes,
                                 .external_bytes = budget_.external_bytes};
    std::size_t planned = 0;
    for (const bool all_again : {true, false})
      for (const Space activations : {Space::host, Space::device})
        for (const Space states : {Space::disk, Space::host})
          for (const Space parameters : {Space::disk, Space::host, Space::device})  // the last: as they are
            for (const int resident : {0, specs_.front().strategy.resident_units, units()}) {
              if (planned > kFewPlanned) return false;
              const std::vector<StepSpec> specs =
                  saving_all({activations, states, parameters}, all_again, resident);
              if (!means_something(specs)) return true;
              const Plans plans = plans_of(specs, device);
              if (plans.fit) return true;
              planned += plans.instructions;
            }
    return false;
  }

  struct Places {
    Space activations, states, parameters;
  };

  std::vector<StepSpec> saving_all(const Places& places, bool all_again, int resident) const {
    std::vector<StepSpec> specs = specs_;
    for (const StrategyChange& change : changes_) {
      const bool of_states = change.part == StrategyPart::states && change.to != places.states;
      const bool of_activations = change.part == StrategyPart::activations && change.to != places.activations;
      const bool of_parameters = change.part == StrategyPart::parameters &&
                                 (places.parameters == Space::device || change.to != places.parameters);
      if (change.some || of_states || of_activations || of_parameters ||
          (change.makes_all_again && !all_again))
        continue;
      for (StepSpec& spec : specs) change.make(spec);
    }
    for (StepSpec& spec : specs) spec.strategy.resident_units = resident;
    return specs;
  }

  int units() const { return layout_.units().count(); }

  // With parameters off the device, one that stays gathered is not brought again, which may save memory.
  int more_resident() const {
    const Strategy& strategy = specs_.front().strategy;
    if (strategy.offload.parameters == Space::device) return -1;
    const int most = fit_resident_units(layout_, mesh_, specs_, budget_);
    return most > strategy.resident_units && most < units() ? most : -1;
  }

  bool means_something(const std::vector<StepSpec>& specs) const {
    try {
      for (const StepSpec& spec : specs) check_strategy(mesh_, spec.strategy);
    } catch (const UsageError&) {
      return false;
    }
    return true;
  }

  // No more ranks than show that it does not fit; all without a budget.
  Plans plans_of(const std::vector<StepSpec>& specs, const MemoryBudget& budget) const {
    Plans plans;
    if (!means_something(specs)) return {.fit = false};
    for (PlannedPrograms& planned : plan_pipeline(layout_, mesh_, specs, budget)) {
      plans.fit = budget.holds(planned.plan);
      for (std::size_t space = 0; space < plans.bytes.size(); ++space)
        plans.bytes[space] = std::max(plans.bytes[space], planned.plan.spaces[space].arena_bytes);
      for (const Program& program : planned.programs) plans.instructions += program.instructions.size();
      if (planned.first_data_rank == 0) plans.programs.push_back(std::move(planned.programs.front()));
    }
    return plans;
  }

  // None where these changes change nothing, mean nothing on this mesh, or do not fit.
  const std::optional<Outcome>& attempt(const Chosen& chosen) {
    std::vector<StepSpec> specs = specs_;
    for (const std::size_t change : chosen)
      for (StepSpec& spec : specs) changes_[change].make(spec);
    std::vector<std::string> words = describe_changes(specs_.front().strategy, specs.front().strategy);
    const auto [entry, is_new] = tried_.try_emplace(words);
    if (!is_new || words.empty()) return entry->second;
    const Plans plans = plans_of(specs, budget_);
    planned_ += plans.instructions;
    if (plans.fit)
      entry->second =
          Outcome{chosen, std::move(words), plans.bytes, step_us(layout_, mesh_, plans.programs, cost_)};
    return entry->second;
  }

  // In place of the change at that place what it brings along.
  Chosen without(Chosen chosen, std::size_t at) const {
    const StrategyPart part = changes_[chosen[at]].part;
    chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(at));
    if (part == StrategyPart::saving) return chosen;
    for (std::size_t change = 0; change < changes_.size(); ++change)
      if (changes_[change].comes_with == part && !std::ranges::binary_search(chosen, change))
        chosen.insert(std::ranges::upper_bound(chosen, change), change);
    return chosen;
  }

  // None of which can stay away, what costs the most time given up first.
  Chosen needed_of(Chosen chosen) {
    for (bool fewer = true; fewer;) {
      fewer = false;
      for (std::size_t at = chosen.size(); at-- > 0 && !fewer;) {
        Chosen others = chosen;
        others.erase(others.begin() + static_cast<std::ptrdiff_t>(at));
        if (!attempt(others)) others = without(chosen, at);
        fewer = attempt(others).has_value();
        if (fewer) chosen = std::move(others);
      }
    }
    return chosen;
  }

  const Layout& layout_;
  const Mesh& mesh_;
  const std::vector<StepSpec>& specs_;
  const MemoryBudget& budget_;
  const CostModel& cost_;
  const std::vector<StrategyChange> changes_;
  std::map<std::vector<std::string>, std::optional<Outcome>> tried_;  // by words
  std::size_t planned_ = 0;                                           // instructions
};

// Of each space the rank that needs most of it: a budget of what it needs is enough for all.
std::string describe_misfit(std::span<const MemoryPlan> plans, const Mesh& mesh, const MemoryBudget& budget) {
  std::string text;
  const auto space = [&](Space which, const std::string& name, std::int64_t bytes, std::int64_t external) {
    const auto fullest = std::ranges::max_element(
        plans, {}, [&](const MemoryPlan& plan) { return plan.space(which).arena_bytes; });
    std::int64_t needed = 0;
    if (__builtin_add_overflow(fullest->space(which).arena_bytes, external, &needed))
      needed = std::numeric_limits<std::int64_t>::max();
    if (bytes == 0 || needed <= bytes) return;
    const std::string whose =
        mesh.pipeline > 1 ? fmt::format(" of pipeline rank {}", (fullest - plans.begin()) % mesh.pipeline)
                          : "";
    text += fmt::format("{} is {} bytes, but the plan{} needs {}: {} bytes are missing\n{}", name, bytes,
                        whose, needed, needed - bytes, describe_plan(*fullest, which));
    if (external > 0) text += fmt::format("  {:<22}{:>18}\n", "external bytes", external);
  };
  space(Space::device, budget.names.device, budget.device_bytes, budget.external_bytes);
  space(Space::host, budget.names.host, budget.host_bytes, 0);
  return text;
}

}  // namespace

std::string explain_misfit(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                           std::span<const MemoryPlan> plans, const MemoryBudget& budget,
                           const CostModel& cost) {
  std::string text = describe_misfit(plans, mesh, budget);
  Search search(layout, mesh, specs, budget, cost);
  const std::vector<Outcome> found = search.fitting();
  if (found.empty())
    return text + "  no change that was tried fits: take more ranks, a smaller microbatch, or more memory";
  const double now_us = search.step_us_as_it_is();
  for (const Outcome& outcome : found) {
    text += fmt::format("{}  would fit with {}: {} bytes", &outcome == &found.front() ? "" : "\n",
                        fmt::join(outcome.words, ", "), outcome.bytes[0] + budget.external_bytes);
    for (const Space space : {Space::host, Space::disk})
      if (const std::int64_t bytes = outcome.bytes[space]; bytes > 0)
        text += fmt::format(", {} on the {}", bytes, name_of(space));
    // Without the passes' operations a step has no time worth telling.
    if (cost.has_flops() && now_us > 0)
      text += fmt::format(", {:.2f} × the step's time", outcome.step_us / now_us);
  }
  return text;
}

}  // namespace tessera
