// Chooses by a linear model of memory. The plan of the real programs has the last word, and where model and
// plan disagree, the model is asked again for as much more or less.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "src/simulate/step_time.h"
#include "src/tune/activation_model.h"
#include "tessera/budget.h"
#include "tessera/pipeline.h"

namespace tessera {
namespace {

using Bytes = ActivationModel::Bytes;
using Picks = ActivationModel::Picks;
using Spaces = ActivationModel::Spaces;

constexpr Bytes kNoLimit = Bytes{1} << 56;

constexpr int kModelRounds = 8;      // that the model is asked
constexpr int kOthers = 2;           // of the last round's solutions, besides the one with the least time
constexpr double kOthersTake = 1.1;  // of its time, at most
constexpr int kExactTries = 12;      // of changes of one unit, planned one by one
constexpr int kWaitingTries = 150;   // the same where units may wait on the host, whose copies share a link
constexpr std::size_t kPairedUnits = 10;   // up to which changes of two units are tried, too
constexpr double kFewMixtures = 32;        // are all planned
constexpr double kNear = 0.1, kFar = 0.3;  // by which what the model says may be above what fits
constexpr double kSameTime = 1e-4;         // of a step
// For the step of all ranks: changes planned of each one's best, its choices kept, fewer of many ranks, and
// instructions simulated.
constexpr int kWideningTries = 150, kMostCandidates = 40, kCandidatesTimesRanks = 160;
constexpr std::size_t kSimulated = 20'000'000;
// How much of a copy that one use hides counts all the same, tried in turn: others may be in its way.
constexpr double kHiddenWeights[] = {0.0, 0.3, 1.0};

// What the budget leaves to the arenas.
Spaces limits_of(const MemoryBudget& budget) {
  const auto limit = [](Bytes bytes, Bytes external) {
    return bytes == 0 ? kNoLimit : std::min(kNoLimit, bytes - external);
  };
  return {.device = limit(budget.device_bytes, budget.external_bytes), .host = limit(budget.host_bytes, 0)};
}

// A choice of one pipeline rank's, planned.
struct Candidate {
  Picks picks;
  IdVector<ActivationChoice> units;
  Spaces bytes;
  double us = 0;                  // of this rank's step alone
  double spent_us = 0;            // on making again and copying, hidden or not
  std::vector<Program> training;  // its programs
};

// One pipeline rank's choices.
class Chooser {
 public:
  Chooser(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs, const CostModel& cost,
          int rank, const MemoryBudget& budget, std::span<const UnitChoices> tried)
      : layout_(layout),
        mesh_(mesh),
        specs_(specs),
        cost_(cost),
        rank_(rank),
        limits_(limits_of(budget)),
        model_(layout, mesh, specs, cost, rank, tried, budget.host_bytes > 0) {}

  // What fits, the least time first. Where nothing does, that of which the least is missing: of what takes no
  // more of either space, one that takes little time.
  std::vector<Candidate> run() {
    search();
    if (fits(best_[0])) {
      if (best_[0].spent_us > 0) refine();
      if (best_[0].spent_us > 0 && mesh_.pipeline > 1) widen();
      return std::move(best_);
    }
    limits_ = {std::max(limits_.device, best_[0].bytes.device), std::max(limits_.host, best_[0].bytes.host)};
    seen_ = {best_[0].picks};
    search();
    return std::move(best_);
  }

 private:
  void search() {
    consider(model_.least());
    consider(model_.least(Space::host));
    consider(model_.least_spent());
    if (fits(best_[0]) && best_[0].spent_us == 0) return;
    if (mixtures() <= kFewMixtures) return each_mixture();
    for (const double weight : kHiddenWeights) {
      model_.weigh_hidden(weight);
      ask_model();
      if (!model_.copies()) break;
    }
    for (const Picks& picks : model_.alike()) consider(picks);
  }

  IdVector<ActivationChoice> choices(const Picks& picks) const {
    IdVector<ActivationChoice> units;
    for (std::size_t unit = 0; unit < picks.size(); ++unit)
      units.push_back(model_.options()[unit][picks[unit]].choice);
    return units;
  }

  // Of those options that no other beats.
  double mixtures() const {
    double count = 1;
    for (const auto& of_unit : model_.options()) count *= static_cast<double>(of_unit.size());
    return count;
  }

  void each_mixture() {
    Picks picks(model_.options().size());
    for (std::size_t unit = 0; unit < picks.size();) {
      consider(picks);
      for (unit = 0; unit < picks.size(); ++unit) {  // counts, the first unit the fastest
        if (++picks[unit] < model_.options()[unit].size()) break;
        picks[unit] = 0;
      }
    }
  }

  void ask_model() {
    target_ = limits_;
    std::vector<Picks> found;
    for (int round = 0; round < kModelRounds; ++round) {
      found = model_.solve(target_);
      const auto bytes = consider(found[0]);
      if (!bytes) break;
      const Spaces peak = model_.peak(found[0]);
      target_ = {next_target(target_.device, peak.device, bytes->device, limits_.device),
                 next_target(target_.host, peak.host, bytes->host, limits_.host)};
    }
    int others = kOthers;
    for (const Picks& picks : found)
      if (others > 0 && model_.us(picks) <= kOthersTake * model_.us(found[0]) && consider(picks)) --others;
  }

  // What exceeds the budget must not be found again, also where the target has more than it takes.
  static Bytes next_target(Bytes target, Bytes peak, Bytes bytes, Bytes limit) {
    return std::min(kNoLimit, (bytes > limit ? peak : target) + limit - bytes);
  }

  // Plans and simulates the picks. The bytes that they take; nothing where they are known.
  std::optional<Spaces> consider(const Picks& picks) {
    if (!seen_.insert(picks).second) return std::nullopt;
    const std::vector<ActivationChoice> units = choices(picks);
    for (StepSpec& spec : specs_) spec.strategy.unit_activations = units;
    PlannedPrograms planned = build_and_plan(layout_, mesh_, specs_, rank_);
    Candidate found{
        .picks = picks,
        .units = units,
        .bytes = {planned.plan.space(Space::device).arena_bytes, planned.plan.space(Space::host).arena_bytes},
        .us = 0,
        .spent_us = model_.spent_us(picks),
        .training = {}};
    for (const int data_rank : first_data_ranks(specs_)) {  // those that rest in the last round must fit, too
      if (data_rank == 0) continue;
      const MemoryPlan plan = build_and_plan(layout_, mesh_, specs_, rank_, data_rank).plan;
      found.bytes.device = std::max(found.bytes.device, plan.space(Space::device).arena_bytes);
      found.bytes.host = std::max(found.bytes.host, plan.space(Space::host).arena_bytes);
    }
    for (Program& program : planned.programs) {
      if (program.kind != StepKind::train) continue;
      found.us += simulate(program, layout_, mesh_, cost_).total_us;
      found.training.push_back(std::move(program));
    }
    const Spaces bytes = found.bytes;
    keep(std::move(found));
    return bytes;
  }

  Bytes missing(const Candidate& one) const {
    return std::max<Bytes>(0, one.bytes.device - limits_.device) +
           std::max<Bytes>(0, one.bytes.host - limits_.host);
  }
  bool fits(const Candidate& one) const { return missing(one) == 0; }

  std::size_t candidates() const {
    if (mesh_.pipeline == 1) return 1;
    return static_cast<std::size_t>(std::clamp(kCandidatesTimesRanks / mesh_.pipeline, 2, kMostCandidates));
  }

  // What fits goes before what does not, and that with the least time, or missing bytes, first. Of about the
  // same time what makes and copies the least: hidden work is in the way of what a simulation does not know.
  void keep(Candidate found) {
    if (grain_us_ == 0) grain_us_ = std::max(kSameTime * found.us, std::numeric_limits<double>::min());
    const auto before = [this](const Candidate& a, const Candidate& b) {
      if (missing(a) != missing(b)) return missing(a) < missing(b);
      if (!fits(a)) return a.spent_us < b.spent_us;
      const double grains_a = std::floor(a.us / grain_us_), grains_b = std::floor(b.us / grain_us_);
      return grains_a != grains_b ? grains_a < grains_b : a.spent_us < b.spent_us;
    };
    best_.insert(std::ranges::upper_bound(best_, found, before), std::move(found));
    while (best_.size() > candidates() || (best_.size() > 1 && !fits(best_.back()))) best_.pop_back();
  }

  // Changes that the model thinks well of, the best first, while tries last.
  void refine() {
    for (int tries = model_.copies() ? kWaitingTries : kExactTries; tries > 0;) {
      const Picks before = best_[0].picks;
      // With copies, which the model knows less well, also what should take more time.
      const double most_us = model_.copies() ? std::numeric_limits<double>::infinity() : model_.us(before);
      for (const auto& [far, us, picks] : changed(before, most_us, model_.copies())) {
        if (best_[0].picks != before || tries-- == 0) break;
        consider(picks);
      }
      if (best_[0].picks == before) return;
    }
  }

  // What takes about as long as the best, for the step of all ranks.
  void widen() {
    const Picks best = best_[0].picks;
    int tries = kWideningTries;
    for (const auto& [far, us, picks] : changed(best, kOthersTake * model_.us(best), true))
      if (tries-- > 0) consider(picks);
  }

  // What the model says of picks that differ from others.
  struct Changed {
    bool far;  // above what should fit, but not by as much as the model may be wrong
    double us;
    Picks picks;
  };

  // How far the picks should be above what fits, as a share of it.
  double excess(const Picks& picks) const {
    const auto of = [](Bytes peak, Bytes target, Bytes limit) {
      return static_cast<double>(peak) / static_cast<double>(std::max({target, limit, Bytes{1}})) - 1;
    };
    const Spaces peak = model_.peak(picks);
    return std::max(of(peak.device, target_.device, limits_.device),
                    of(peak.host, target_.host, limits_.host));
  }

  // What is not known of the picks that differ in one unit, or in `pairs` of few, that may fit and that
  // should take less than `most_us`. By the model's time.
  std::vector<Changed> changed(const Picks& from, double most_us, bool pairs) const {
    std::vector<Changed> found;
    const bool paired = pairs && from.size() <= kPairedUnits;
    const double most_excess = paired && limits_.host < kNoLimit ? kFar : kNear;
    const auto add = [&](const Picks& picks) {
      if (seen_.contains(picks)) return;
      const double us = model_.us(picks), above = excess(picks);
      if (us < most_us && above <= most_excess) found.push_back({above > kNear, us, picks});
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
      if (paired) each(one, unit + 1, [&](const Picks& two, std::size_t) { add(two); });
    });
    std::ranges::sort(found, {}, [](const Changed& one) { return std::tie(one.far, one.us, one.picks); });
    return found;
  }

  const Layout& layout_;
  const Mesh& mesh_;
  std::vector<StepSpec> specs_;
  const CostModel& cost_;
  int rank_;
  Spaces limits_;  // where nothing fits, what would
  ActivationModel model_;
  Spaces target_;  // what the model is given for them
  double grain_us_ = 0;
  std::vector<Candidate> best_;  // ordered by keep()
  std::set<Picks> seen_;
};

// What all pipeline ranks choose: of each a candidate, so that the step of all takes the least time. The
// least of each by itself need not be: a rank that others wait for is worth more than one that waits.
class Together {
 public:
  // Takes the programs out of `of_ranks`.
  Together(const Layout& layout, const Mesh& mesh, const CostModel& cost,
           std::vector<std::vector<Candidate>>& of_ranks)
      : layout_(layout), mesh_(mesh), cost_(cost), of_ranks_(of_ranks), at_(of_ranks.size()) {
    programs_.resize(of_ranks_[0][0].training.size(), std::vector<Program>(of_ranks_.size()));
    for (std::size_t rank = 0; rank < at_.size(); ++rank)
      for (std::size_t k = 0; k < programs_.size(); ++k)
        std::swap(programs_[k][rank], of_ranks_[rank][0].training[k]);
  }

  // By rank, its candidate. One rank's is changed at a time, the slowest one's first, while that saves time.
  const std::vector<std::size_t>& run() {
    std::vector<std::size_t> order(at_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater{}, [&](std::size_t rank) { return of_ranks_[rank][0].us; });
    std::size_t steps = kSimulated / instructions();
    double least = step_us();
    for (bool better = steps > 0; better;) {
      better = false;
      for (const std::size_t rank : order) {
        std::size_t best = at_[rank];
        for (std::size_t one = 0; one < of_ranks_[rank].size() && steps > 0; ++one) {
          if (one == best) continue;
          --steps;
          take(rank, one);
          if (const double us = step_us(); us < least * (1 - kSameTime))
            least = us, best = one, better = true;
        }
        take(rank, best);
      }
    }
    return at_;
  }

 private:
  void take(std::size_t rank, std::size_t one) {
    for (std::size_t k = 0; k < programs_.size(); ++k) {
      std::swap(programs_[k][rank], of_ranks_[rank][at_[rank]].training[k]);
      std::swap(programs_[k][rank], of_ranks_[rank][one].training[k]);
    }
    at_[rank] = one;
  }

  double step_us() const {
    double us = 0;
    for (const std::vector<Program>& programs : programs_)
      us += tessera::step_us(layout_, mesh_, programs, cost_);
    return us;
  }

  std::size_t instructions() const {
    std::size_t count = 1;
    for (const auto& programs : programs_)
      for (const Program& program : programs) count += program.instructions.size();
    return count;
  }

  const Layout& layout_;
  const Mesh& mesh_;
  const CostModel& cost_;
  std::vector<std::vector<Candidate>>& of_ranks_;  // without the programs of those taken
  std::vector<std::size_t> at_;                    // by rank: the candidate taken
  std::vector<std::vector<Program>> programs_;     // theirs, by training program and rank
};

}  // namespace

std::span<const ActivationChoice> recompute_choices() {
  static const ActivationChoice kChoices[] = {
      {.recompute = Recompute::none}, {.recompute = Recompute::selective}, {.recompute = Recompute::full}};
  return kChoices;
}

ChosenActivations choose_activations(const Layout& layout, const Mesh& mesh,
                                     const std::vector<StepSpec>& specs, const CostModel& cost,
                                     const MemoryBudget& budget, std::span<const ActivationChoice> among) {
  IdVector<std::vector<Candidate>> of_ranks;
  of_ranks.reserve(static_cast<std::size_t>(mesh.pipeline));
  const std::vector<UnitChoices> tried = choices_to_try(specs, cost, layout.units().count(), among);
  for (int rank = 0; rank < mesh.pipeline; ++rank)
    of_ranks.push_back(Chooser(layout, mesh, specs, cost, rank, budget, tried).run());
  const Spaces limits = limits_of(budget);
  ChosenActivations chosen;
  chosen.fits = std::ranges::all_of(of_ranks, [&](const auto& of) {
    return of[0].bytes.device <= limits.device && of[0].bytes.host <= limits.host;
  });
  IdVector<std::size_t> at(of_ranks.size());
  if (chosen.fits && mesh.pipeline > 1) at = Together(layout, mesh, cost, of_ranks).run();

  const int units = layout.units().count();
  const Partition partition(units, mesh.pipeline, specs.at(0).strategy.pipeline);
  for (std::size_t rank = 0; rank < at.size(); ++rank) {
    const Spaces& bytes = of_ranks[rank][at[rank]].bytes;
    chosen.arena_bytes = std::max(chosen.arena_bytes, bytes.device);
    chosen.host_bytes = std::max(chosen.host_bytes, bytes.host);
  }
  for (UnitId unit = 0; unit < units; ++unit) {
    const int rank = partition.rank_of(unit);
    chosen.units.push_back(of_ranks[rank][at[rank]].units[unit]);
  }
  return chosen;
}

}  // namespace tessera
