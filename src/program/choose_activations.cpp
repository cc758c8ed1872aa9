// Chooses by a linear model of memory: what a unit's activations take during each pass, under each choice, on
// top of all else. The plan of the real programs has the last word, and where model and plan disagree, the
// model is asked again for as much more or less.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "src/program/instruction_costs.h"
#include "tessera/budget.h"
#include "tessera/pipeline.h"

namespace tessera {
namespace {

using Bytes = std::int64_t;
using Row = std::vector<Bytes>;  // by slot: a forward or backward pass, with what is issued ahead of it
using Picks = std::vector<std::size_t>;  // by unit of the model: index of an option

constexpr ActivationChoice kChoices[] = {
    {.recompute = Recompute::none}, {.recompute = Recompute::selective}, {.recompute = Recompute::full}};
constexpr int kModelRounds = 8;  // that the model is asked
constexpr int kExactTries = 12;  // of single changes, planned one by one

struct Option {
  ActivationChoice choice;
  double us = 0;  // what it adds to a step
  Row bytes;
};

// The unit's activations, and its input, which a choice may move.
UnitId owner_of(const Buffer& buffer) {
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
  Model(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs, const CostModel& cost, int rank)
      : options_(layout.units().size()) {
    for (const ActivationChoice& choice : kChoices) {
      for (std::vector<Option>& of_unit : options_) of_unit.push_back({choice, 0, {}});
      std::size_t begin = 0;  // of the program's slots
      for (StepSpec& spec : specs) {
        if (spec.kind != StepKind::train) continue;
        spec.strategy.unit_activations.assign(options_.size(), choice);
        const Program program = build_step(layout, mesh, spec, rank);
        add(program, InstructionCosts(program, layout, mesh, cost, first_rank(mesh, rank)), begin);
        begin = rest_.size();
      }
    }
    for (std::vector<Option>& of_unit : options_) finish(of_unit);
    merge_slots();
  }

  const std::vector<std::vector<Option>>& options() const { return options_; }

  double us(const Picks& picks) const {
    double sum = 0;
    for (std::size_t unit = 0; unit < picks.size(); ++unit) sum += options_[unit][picks[unit]].us;
    return sum;
  }

  Bytes peak(const Picks& picks) const { return std::ranges::max(loads(picks)); }

  // The last option of each unit takes the least memory.
  Picks least() const {
    Picks picks;
    for (const std::vector<Option>& of_unit : options_) picks.push_back(of_unit.size() - 1);
    return picks;
  }

  // Little time within `budget`: from the least memory, the changes that save the most time for the memory
  // they take; then exchanges of two units' options while any saves time. least() where that is too much.
  Picks solve(Bytes budget) const {
    Picks picks = least();
    Row load = loads(picks);
    if (std::ranges::max(load) > budget) return picks;
    do {
      while (improve_one(picks, load, budget)) {
      }
    } while (improve_two(picks, load, budget));
    return picks;
  }

 private:
  static int first_rank(const Mesh& mesh, int pipeline_rank) { return mesh.rank({pipeline_rank, 0, 0, 0}); }

  void add(const Program& program, const InstructionCosts& costs, std::size_t begin) {
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
      const Instruction& instruction = program.instructions[at];
      if (instruction.op == Opcode::use && instruction.pass == Pass::recompute)
        options_[static_cast<std::size_t>(instruction.unit)].back().us += costs.us(instruction);
    }
  }

  // Drops options that another beats in time and memory, and puts the least memory last.
  void finish(std::vector<Option>& options) const {
    for (Option& option : options) option.bytes.resize(rest_.size());
    const auto beats = [](const Option& a, const Option& b) {
      return a.us <= b.us && std::ranges::equal(a.bytes, b.bytes, std::less_equal<>());
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

  double saved_us(const Picks& picks, const Change& change) const {
    return options_[change.unit][picks[change.unit]].us - options_[change.unit][change.option].us;
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
};

// One pipeline rank's choice.
class Chooser {
 public:
  Chooser(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs, const CostModel& cost,
          int rank, Bytes budget)
      : layout_(layout),
        mesh_(mesh),
        specs_(specs),
        rank_(rank),
        budget_(budget),
        model_(layout, mesh, specs, cost, rank) {}

  ChosenActivations run() {
    best_ = model_.least();
    best_bytes_ = arena_bytes(best_);
    if (best_bytes_ > budget_) return result();
    Bytes target = budget_;
    for (int round = 0; round < kModelRounds; ++round) {
      const Picks picks = model_.solve(target);
      const auto bytes = consider(picks);
      if (!bytes) break;
      target += budget_ - *bytes;
    }
    refine();
    return result();
  }

 private:
  ChosenActivations result() const { return {.units = choices(best_), .arena_bytes = best_bytes_}; }

  std::vector<ActivationChoice> choices(const Picks& picks) const {
    std::vector<ActivationChoice> units;
    for (std::size_t unit = 0; unit < picks.size(); ++unit)
      units.push_back(model_.options()[unit][picks[unit]].choice);
    return units;
  }

  Bytes arena_bytes(const Picks& picks) {
    for (StepSpec& spec : specs_) spec.strategy.unit_activations = choices(picks);
    return build_and_plan(layout_, mesh_, specs_, rank_).plan.space(Space::device).arena_bytes;
  }

  // The bytes that the picks take; nothing where they are known.
  std::optional<Bytes> consider(const Picks& picks) {
    if (!seen_.insert(picks).second) return std::nullopt;
    const Bytes bytes = arena_bytes(picks);
    if (bytes <= budget_ && model_.us(picks) < model_.us(best_)) best_ = picks, best_bytes_ = bytes;
    return bytes;
  }

  // Single changes that save time, the most first, while tries last.
  void refine() {
    for (int tries = kExactTries; tries > 0;) {
      std::vector<std::pair<double, Picks>> changed;
      for (std::size_t unit = 0; unit < best_.size(); ++unit)
        for (std::size_t option = 0; option < model_.options()[unit].size(); ++option) {
          Picks picks = best_;
          picks[unit] = option;
          const double us = model_.us(picks);
          if (us < model_.us(best_) && !seen_.contains(picks)) changed.emplace_back(us, std::move(picks));
        }
      if (changed.empty()) return;
      std::ranges::sort(changed);
      const Picks before = best_;
      for (const auto& [us, picks] : changed) {
        if (best_ != before || tries-- == 0) break;
        consider(picks);
      }
      if (best_ == before) return;
    }
  }

  const Layout& layout_;
  const Mesh& mesh_;
  std::vector<StepSpec> specs_;
  int rank_;
  Bytes budget_;
  Model model_;
  Picks best_;
  Bytes best_bytes_ = 0;
  std::set<Picks> seen_;
};

}  // namespace

ChosenActivations choose_activations(const Layout& layout, const Mesh& mesh,
                                     const std::vector<StepSpec>& specs, const CostModel& cost,
                                     std::int64_t budget_bytes) {
  const int units = static_cast<int>(layout.units().size());
  ChosenActivations chosen{.units = std::vector<ActivationChoice>(layout.units().size())};
  for (int rank = 0; rank < mesh.pipeline; ++rank) {
    const ChosenActivations own = Chooser(layout, mesh, specs, cost, rank, budget_bytes).run();
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
