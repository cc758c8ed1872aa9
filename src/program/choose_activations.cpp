// Chooses by a linear model of memory. The plan of the real programs has the last word, and where model and
// plan disagree, the model is asked again for as much more or less.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "src/program/activation_model.h"
#include "tessera/budget.h"
#include "tessera/pipeline.h"

namespace tessera {
namespace {

using Bytes = ActivationModel::Bytes;
using Picks = ActivationModel::Picks;

constexpr int kModelRounds = 8;      // that the model is asked
constexpr int kOthers = 2;           // of the last round's solutions, besides the one with the least time
constexpr double kOthersTake = 1.1;  // of its time, at most
constexpr int kExactTries = 12;      // of changes of one unit, planned one by one
constexpr int kWaitingTries = 150;   // the same where units may wait on the host, whose copies share a link
constexpr std::size_t kPairedUnits = 10;  // up to which changes of two units are tried, too
// How much of a copy that one use hides counts all the same, tried in turn: others may be in its way.
constexpr double kHiddenWeights[] = {0.0, 0.3, 1.0};

// One pipeline rank's choice.
class Chooser {
 public:
  Chooser(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs, const CostModel& cost,
          int rank, Bytes budget, std::span<const ActivationChoice> among)
      : layout_(layout),
        mesh_(mesh),
        specs_(specs),
        cost_(cost),
        rank_(rank),
        budget_(budget),
        model_(layout, mesh, specs, cost, rank, among) {}

  ChosenActivations run() {
    consider(model_.least());
    for (const double weight : kHiddenWeights) {
      model_.weigh_hidden(weight);
      ask_model();
      if (!model_.copies()) break;
    }
    if (best_bytes_ <= budget_) refine();
    return {.units = choices(best_), .arena_bytes = best_bytes_};
  }

 private:
  std::vector<ActivationChoice> choices(const Picks& picks) const {
    std::vector<ActivationChoice> units;
    for (std::size_t unit = 0; unit < picks.size(); ++unit)
      units.push_back(model_.options()[unit][picks[unit]].choice);
    return units;
  }

  void ask_model() {
    target_ = budget_;
    std::vector<Picks> found;
    for (int round = 0; round < kModelRounds; ++round) {
      found = model_.solve(target_);
      const auto bytes = consider(found[0]);
      if (!bytes) break;
      // What exceeds the budget must not be found again, also where the target has more than it takes.
      if (*bytes > budget_) target_ = model_.peak(found[0]);
      target_ += budget_ - *bytes;
    }
    int others = kOthers;
    for (const Picks& picks : found)
      if (others > 0 && model_.us(picks) <= kOthersTake * model_.us(found[0]) && consider(picks)) --others;
  }

  // Plans and simulates the picks and keeps the better: what fits before what does not. The bytes that they
  // take; nothing where they are known.
  std::optional<Bytes> consider(const Picks& picks) {
    if (!seen_.insert(picks).second) return std::nullopt;
    for (StepSpec& spec : specs_) spec.strategy.unit_activations = choices(picks);
    const PlannedPrograms planned = build_and_plan(layout_, mesh_, specs_, rank_);
    const Bytes bytes = planned.plan.space(Space::device).arena_bytes;
    double us = 0;
    for (const Program& program : planned.programs)
      if (program.kind == StepKind::train) us += simulate(program, layout_, mesh_, cost_).total_us;
    const bool fits = bytes <= budget_, best_fits = best_bytes_ <= budget_;
    if (best_.empty() || (fits != best_fits ? fits : fits ? us < best_us_ : bytes < best_bytes_))
      best_ = picks, best_bytes_ = bytes, best_us_ = us;
    return bytes;
  }

  // Changes that the model thinks well of, the best first, while tries last.
  void refine() {
    for (int tries = model_.copies() ? kWaitingTries : kExactTries; tries > 0;) {
      const Picks before = best_;
      for (const auto& [us, picks] : changed(before)) {
        if (best_ != before || tries-- == 0) break;
        consider(picks);
      }
      if (best_ == before) return;
    }
  }

  // What is not known of the picks that differ in one unit, or in two of few, that may fit and that should
  // take less time; with copies, which the model knows less well, also more. By the model's time.
  std::vector<std::pair<double, Picks>> changed(const Picks& from) const {
    std::vector<std::pair<double, Picks>> found;
    const auto add = [&](const Picks& picks) {
      if (seen_.contains(picks)) return;
      const double us = model_.us(picks);
      if ((model_.copies() || us < model_.us(from)) &&
          model_.peak(picks) <= std::max(target_, budget_) * 11 / 10)
        found.emplace_back(us, picks);
    };
    const auto each = [&](const Picks& picks, std::size_t first, const auto& visit) {
      for (std::size_t unit = first; unit < picks.size(); ++unit)
        for (std::size_t option = 0; option < model_.options()[unit].size(); ++option) {
          Picks one = picks;
          one[unit] = option;
          if (option != picks[unit]) visit(one, unit);
        }
    };
    each(from, 0, [&](const Picks& one, std::size_t unit) {
      add(one);
      if (model_.copies() && from.size() <= kPairedUnits)
        each(one, unit + 1, [&](const Picks& two, std::size_t) { add(two); });
    });
    std::ranges::sort(found);
    return found;
  }

  const Layout& layout_;
  const Mesh& mesh_;
  std::vector<StepSpec> specs_;
  const CostModel& cost_;
  int rank_;
  Bytes budget_;
  ActivationModel model_;
  Bytes target_ = 0;  // what the model is given for the budget
  Picks best_;
  Bytes best_bytes_ = 0;
  double best_us_ = 0;
  std::set<Picks> seen_;
};

// Even the least does not fit.
[[noreturn]] void refuse(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                         const CostModel& cost, Bytes budget, const ChosenActivations& least) {
  for (StepSpec& spec : specs) spec.strategy.unit_activations = least.units;
  for (const PlannedPrograms& planned : plan_pipeline(layout, mesh, specs))
    if (planned.plan.space(Space::device).arena_bytes == least.arena_bytes)
      throw UsageError("even where every unit keeps the least activations, " +
                       explain_misfit(layout, mesh, specs, planned.plan, {.device_bytes = budget}, cost));
  throw Error("no pipeline rank has the plan that its activations were chosen for");
}

}  // namespace

std::span<const ActivationChoice> recompute_choices() {
  static constexpr ActivationChoice kChoices[] = {
      {.recompute = Recompute::none}, {.recompute = Recompute::selective}, {.recompute = Recompute::full}};
  return kChoices;
}

ChosenActivations choose_activations(const Layout& layout, const Mesh& mesh,
                                     const std::vector<StepSpec>& specs, const CostModel& cost,
                                     std::int64_t budget_bytes, std::span<const ActivationChoice> among) {
  const int units = static_cast<int>(layout.units().size());
  ChosenActivations chosen{.units = std::vector<ActivationChoice>(layout.units().size())};
  for (int rank = 0; rank < mesh.pipeline; ++rank) {
    const ChosenActivations own = Chooser(layout, mesh, specs, cost, rank, budget_bytes, among).run();
    chosen.arena_bytes = std::max(chosen.arena_bytes, own.arena_bytes);
    const Partition partition(units, mesh.pipeline, specs.at(0).strategy.pipeline);
    for (UnitId unit = 0; unit < units; ++unit)
      if (partition.rank_of(unit) == rank)
        chosen.units[static_cast<std::size_t>(unit)] = own.units[static_cast<std::size_t>(unit)];
  }
  if (chosen.arena_bytes > budget_bytes) refuse(layout, mesh, specs, cost, budget_bytes, chosen);
  return chosen;
}

}  // namespace tessera
