// Chooses by a linear model of memory: what a unit's activations take during each pass, under each choice, on
// top of all else. The plan of the real programs has the last word, and where model and plan disagree, the
// model is asked again for as much more or less.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "src/program/instruction_costs.h"
#include "tessera/budget.h"
#include "tessera/pipeline.h"

namespace tessera {
namespace {

using Bytes = std::int64_t;
using Row = std::vector<Bytes>;  // by slot: a forward or backward pass, with what is issued ahead of it
using Picks = std::vector<std::size_t>;  // by unit of the model: index of an option

constexpr int kModelRounds = 8;     // that the model is asked
constexpr int kExactTries = 12;     // of changes of one unit, planned one by one
constexpr int kWaitingTries = 150;  // the same where units may wait on the host, whose copies share a link
constexpr std::size_t kPairedUnits = 10;  // up to which changes of two units are tried, too
// How much of a copy that one use hides counts all the same, tried in turn: others may be in its way.
constexpr double kHiddenWeights[] = {0.0, 0.3, 1.0};

struct Option {
  ActivationChoice choice;
  double us = 0;         // what it adds to a step
  double hidden_us = 0;  // copies besides, behind compute
  Row bytes;
};

// The unit's activations, and its input, which a choice may move.
UnitId owner_of(const Buffer& buffer) {
  if (buffer.space != Space::device) return -1;
  if (buffer.role == BufferRole::saved || buffer.role == BufferRole::recomputable) return buffer.unit;
  return buffer.role == BufferRole::output ? buffer.unit + 1 : -1;
}

bool is_pass(const Instruction& instruction) {
  return instruction.op == Opcode::use && instruction.pass != Pass::recompute;
}

// By instruction.
std::vector<std::size_t> slots_of(const Program& program) {
  std::vector<std::size_t> slots;
  std::size_t slot = 0;
  for (const Instruction& instruction : program.instructions) {
    slots.push_back(slot);
    slot += is_pass(instruction);
  }
  return slots;
}

// One pipeline rank's memory: `rest`, and for each unit the row of the option that is picked.
class Model {
 public:
  Model(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs, const CostModel& cost, int rank,
        std::span<const ActivationChoice> among)
      : options_(layout.units().size()) {
    for (const ActivationChoice& choice : among) {
      for (std::vector<Option>& of_unit : options_) of_unit.push_back({.choice = choice, .bytes = {}});
      std::size_t begin = 0;  // of the program's slots
      for (StepSpec& spec : specs) {
        if (spec.kind != StepKind::train) continue;
        spec.strategy.unit_activations.assign(options_.size(), choice);
        const Program program = build_step(layout, mesh, spec, rank);
        add_memory(program, begin);
        add_times(program, InstructionCosts(program, layout, mesh, cost, mesh.rank({rank, 0, 0, 0})));
        begin += slots_of(program).back() + 1;
      }
    }
    for (std::vector<Option>& of_unit : options_) finish(of_unit);
    merge_slots();
  }

  const std::vector<std::vector<Option>>& options() const { return options_; }

  // Whether copies take time that other copies may be in the way of.
  bool copies() const {
    return std::ranges::any_of(options_, [](const std::vector<Option>& of_unit) {
      return std::ranges::any_of(of_unit, [](const Option& option) { return option.hidden_us > 0; });
    });
  }
  void weigh_hidden(double weight) { weight_ = weight; }

  double us(const Picks& picks) const {
    double sum = 0;
    for (std::size_t unit = 0; unit < picks.size(); ++unit) sum += us_of(options_[unit][picks[unit]]);
    return sum;
  }

  Bytes peak(const Picks& picks) const { return std::ranges::max(loads(picks)); }

  // Of each unit the option that takes the least memory over all slots.
  Picks least() const {
    Picks picks;
    for (const std::vector<Option>& of_unit : options_) picks.push_back(of_unit.size() - 1);
    return picks;
  }

  // Little time within `budget`: from the least memory, the changes that save the most time for the memory
  // they take; then exchanges of two units' options while any saves time. Where nothing is found to fit, what
  // exceeds the budget least.
  Picks solve(Bytes budget) const {
    Picks picks = least();
    Row load = loads(picks);
    while (reduce_excess(picks, load, budget)) {
    }
    if (std::ranges::max(load) > budget) return picks;
    do {
      while (improve_one(picks, load, budget)) {
      }
    } while (improve_two(picks, load, budget));
    return picks;
  }

 private:
  void add_memory(const Program& program, std::size_t begin) {
    const std::vector<std::size_t> slots = slots_of(program);
    std::vector<Bytes> owned(program.instructions.size() + 1);  // of the units, by instruction, as changes
    rest_.resize(std::max(rest_.size(), begin + slots.back() + 1));
    for (const Buffer& buffer : program.buffers) {
      const UnitId unit = owner_of(buffer);
      if (unit < 0 || unit >= static_cast<UnitId>(options_.size())) continue;
      Row& bytes = options_[static_cast<std::size_t>(unit)].back().bytes;
      bytes.resize(rest_.size());
      for (const Lifetime& life : buffer.lifetimes) {
        owned[static_cast<std::size_t>(life.first)] += buffer.bytes;
        owned[static_cast<std::size_t>(life.last) + 1] -= buffer.bytes;
        for (std::size_t slot = slots[static_cast<std::size_t>(life.first)];
             slot <= slots[static_cast<std::size_t>(life.last)]; ++slot)
          bytes[begin + slot] += buffer.bytes;
      }
    }
    const std::vector<CategoryBytes> live = live_bytes(program, Space::device);
    Bytes of_units = 0;
    for (std::size_t at = 0; at < live.size(); ++at) {
      of_units += owned[at];
      Bytes& rest = rest_[begin + slots[at]];
      rest = std::max(rest, std::accumulate(live[at].begin(), live[at].end(), Bytes{0}) - of_units);
    }
  }

  // What is repeated, and what of its copies is longer than the use that runs meanwhile.
  void add_times(const Program& program, const InstructionCosts& costs) {
    std::vector<double> copying(options_.size());  // since the last use
    for (const Instruction& instruction : program.instructions) {
      if (instruction.op == Opcode::copy && instruction.flat < 0)
        copying[static_cast<std::size_t>(instruction.unit)] += costs.us(instruction);
      if (instruction.op != Opcode::use) continue;
      const double us = costs.us(instruction);
      if (instruction.pass == Pass::recompute)
        options_[static_cast<std::size_t>(instruction.unit)].back().us += us;
      for (std::size_t unit = 0; unit < copying.size(); ++unit) {
        const double copies = std::exchange(copying[unit], 0.0);
        options_[unit].back().us += std::max(0.0, copies - us);
        options_[unit].back().hidden_us += std::min(copies, us);
      }
    }
  }

  // Drops options that another beats in time and memory, and puts the least memory last.
  void finish(std::vector<Option>& options) const {
    for (Option& option : options) option.bytes.resize(rest_.size());
    const auto beats = [](const Option& a, const Option& b) {
      return a.us <= b.us && a.hidden_us <= b.hidden_us &&
             std::ranges::equal(a.bytes, b.bytes, std::less_equal<>());
    };
    std::vector<Option> kept;
    for (const Option& option : options)
      if (std::ranges::none_of(kept, [&](const Option& other) { return beats(other, option); }))
        kept.push_back(option);
    std::ranges::stable_sort(kept, std::greater<>(), [](const Option& option) {
      return std::accumulate(option.bytes.begin(), option.bytes.end(), Bytes{0});
    });
    options = std::move(kept);
  }

  // Microbatches repeat each other's slots: of those that differ in `rest_` alone, the fullest stays.
  void merge_slots() {
    std::map<Row, Bytes> distinct;  // what all options take in the slot -> the most of the rest
    for (std::size_t slot = 0; slot < rest_.size(); ++slot) {
      Row key;
      for (const std::vector<Option>& of_unit : options_)
        for (const Option& option : of_unit) key.push_back(option.bytes[slot]);
      Bytes& rest = distinct.try_emplace(std::move(key), 0).first->second;
      rest = std::max(rest, rest_[slot]);
    }
    rest_.clear();
    for (std::vector<Option>& of_unit : options_)
      for (Option& option : of_unit) option.bytes.clear();
    for (const auto& [key, rest] : distinct) {
      rest_.push_back(rest);
      auto next = key.begin();
      for (std::vector<Option>& of_unit : options_)
        for (Option& option : of_unit) option.bytes.push_back(*next++);
    }
  }

  Row loads(const Picks& picks) const {
    Row load = rest_;
    for (std::size_t unit = 0; unit < picks.size(); ++unit)
      for (std::size_t slot = 0; slot < load.size(); ++slot)
        load[slot] += options_[unit][picks[unit]].bytes[slot];
    return load;
  }

  // A unit's change to another option.
  struct Change {
    std::size_t unit, option;
  };

  double us_of(const Option& option) const { return option.us + weight_ * option.hidden_us; }
  double saved_us(const Picks& picks, const Change& change) const {
    return us_of(options_[change.unit][picks[change.unit]]) - us_of(options_[change.unit][change.option]);
  }
  Bytes added(const Picks& picks, const Change& change, std::size_t slot) const {
    return options_[change.unit][change.option].bytes[slot] -
           options_[change.unit][picks[change.unit]].bytes[slot];
  }
  void make(Picks& picks, Row& load, const Change& change) const {
    for (std::size_t slot = 0; slot < load.size(); ++slot) load[slot] += added(picks, change, slot);
    picks[change.unit] = change.option;
  }
  template <class Visit>
  void each_change(const Picks& picks, Visit visit) const {
    for (std::size_t unit = 0; unit < picks.size(); ++unit)
      for (std::size_t option = 0; option < options_[unit].size(); ++option)
        if (option != picks[unit]) visit(Change{unit, option});
  }

  // The change that takes the most off what exceeds the budget, summed over the slots.
  bool reduce_excess(Picks& picks, Row& load, Bytes budget) const {
    Bytes best = 0;
    for (const Bytes bytes : load) best += std::max<Bytes>(0, bytes - budget);
    if (best == 0) return false;
    std::optional<Change> found;
    each_change(picks, [&](const Change& change) {
      Bytes excess = 0;
      for (std::size_t slot = 0; slot < load.size(); ++slot)
        excess += std::max<Bytes>(0, load[slot] + added(picks, change, slot) - budget);
      if (excess < best) best = excess, found = change;
    });
    if (found) make(picks, load, *found);
    return found.has_value();
  }

  // The change that saves the most time for the share it takes of what is left where it is tightest.
  bool improve_one(Picks& picks, Row& load, Bytes budget) const {
    double best = 0;
    Change found{};
    each_change(picks, [&](const Change& change) {
      const double saves = saved_us(picks, change);
      if (saves <= 0) return;
      double share = 1e-9;
      for (std::size_t slot = 0; slot < load.size(); ++slot) {
        const Bytes more = added(picks, change, slot), left = budget - load[slot];
        if (more > left) return;
        if (more > 0) share = std::max(share, static_cast<double>(more) / static_cast<double>(left));
      }
      if (saves / share > best) best = saves / share, found = change;
    });
    if (best > 0) make(picks, load, found);
    return best > 0;
  }

  // The exchange that saves the most time.
  bool improve_two(Picks& picks, Row& load, Bytes budget) const {
    double best = 0;
    Change up{}, down{};
    each_change(picks, [&](const Change& a) {
      if (saved_us(picks, a) <= best) return;
      each_change(picks, [&](const Change& b) {
        const double saves = saved_us(picks, a) + saved_us(picks, b);
        if (a.unit == b.unit || saves <= best * (1 + 1e-9)) return;
        for (std::size_t slot = 0; slot < load.size(); ++slot)
          if (load[slot] + added(picks, a, slot) + added(picks, b, slot) > budget) return;
        best = saves, up = a, down = b;
      });
    });
    if (best <= 0) return false;
    make(picks, load, up);
    make(picks, load, down);
    return true;
  }

  std::vector<std::vector<Option>> options_;  // by unit, the least memory last
  Row rest_;
  double weight_ = 0;  // of hidden_us
};

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
    for (int round = 0; round < kModelRounds; ++round) {
      const auto bytes = consider(model_.solve(target_));
      if (!bytes) break;
      target_ += budget_ - *bytes;
    }
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

  // What is not known of the picks that differ in one unit, or in two of few, and that should take less time;
  // with copies, which the model knows less well, all that may fit. By the model's time.
  std::vector<std::pair<double, Picks>> changed(const Picks& from) const {
    std::vector<std::pair<double, Picks>> found;
    const auto add = [&](const Picks& picks) {
      if (seen_.contains(picks)) return;
      const double us = model_.us(picks);
      if (model_.copies() ? model_.peak(picks) <= std::max(target_, budget_) * 11 / 10 : us < model_.us(from))
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
  Model model_;
  Bytes target_ = 0;  // what the model is given for the budget
  Picks best_;
  Bytes best_bytes_ = 0;
  double best_us_ = 0;
  std::set<Picks> seen_;
};

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
  if (chosen.arena_bytes > budget_bytes)
    throw UsageError(fmt::format(
        "device_memory is {} bytes, but even where every unit keeps the least activations the plan needs {}: "
        "{} bytes are missing",
        budget_bytes, chosen.arena_bytes, chosen.arena_bytes - budget_bytes));
  return chosen;
}

}  // namespace tessera
