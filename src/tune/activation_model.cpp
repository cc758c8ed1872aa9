#include "src/tune/activation_model.h"

#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "tessera/plan_memory.h"

namespace tessera {
namespace {

// Of the budget, that solutions are sought within: at most so many, and fewer of many units, each of which
// matters less and takes longer.
constexpr int kParts = 16;
constexpr int kPartsTimesUnits = 800;

// The unit's activations that it keeps, and its input, which a choice may move.
UnitId owner_of(const Buffer& buffer, const ActivationSpec& activations) {
  if (buffer.role == BufferRole::offloaded) return buffer.unit;
  if (buffer.space != Space::device) return -1;
  if (buffer.role == BufferRole::value)
    return activations.units[buffer.unit].values[buffer.index].keep == Keep::pass ? -1 : buffer.unit;
  return buffer.role == BufferRole::output ? buffer.unit + 1 : -1;
}

bool is_pass(const Instruction& instruction) {
  return instruction.op == Opcode::use && instruction.pass != Pass::recompute;
}

// By instruction.
IdVector<std::size_t> slots_of(const Program& program) {
  IdVector<std::size_t> slots;
  std::size_t slot = 0;
  for (const Instruction& instruction : program.instructions) {
    slots.push_back(slot);
    slot += is_pass(instruction);
  }
  return slots;
}

}  // namespace

ActivationModel::ActivationModel(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                                 const CostModel& cost, int rank, std::span<const UnitChoices> tried,
                                 bool host)
    : options_(layout.units().size()) {
  for (const UnitChoices& choices : tried) {
    for (UnitId unit = 0; unit < options_.count(); ++unit)
      options_[unit].push_back({.choice = choices[unit], .bytes = {}});
    std::size_t begin = 0;  // of the program's slots
    for (StepSpec& spec : specs) {
      if (spec.kind != StepKind::train) continue;
      spec.strategy.unit_activations = choices;
      const Program program = build_step(layout, mesh, spec, rank);
      for (const Space space : {Space::device, Space::host}) {
        if (space == Space::device || host) begin = add_memory(program, spec.activations, space, begin);
      }
      add_times(program, InstructionCosts(program, layout, mesh, cost, mesh.rank({rank, 0, 0, 0})));
    }
  }
  alike_.assign(tried.size(), Picks(options_.size()));
  for (std::size_t unit = 0; unit < options_.size(); ++unit) finish(unit);
  merge_slots();
}

bool ActivationModel::copies() const {
  return std::ranges::any_of(options_, [](const std::vector<Option>& of_unit) {
    return std::ranges::any_of(of_unit, [](const Option& option) { return option.hidden_us > 0; });
  });
}

double ActivationModel::us(const Picks& picks) const {
  double sum = 0;
  for (std::size_t unit = 0; unit < picks.size(); ++unit) sum += us_of(options_[unit][picks[unit]]);
  return sum;
}

double ActivationModel::spent_us(const Picks& picks) const {
  double sum = 0;
  for (std::size_t unit = 0; unit < picks.size(); ++unit)
    sum += options_[unit][picks[unit]].us + options_[unit][picks[unit]].hidden_us;
  return sum;
}

ActivationModel::Picks ActivationModel::least(Space space) const {
  const Space other = space == Space::device ? Space::host : Space::device;
  Picks picks;
  for (const std::vector<Option>& of_unit : options_) {
    const auto bytes = [&](const Option& option) {
      return std::pair(sum_of(option, space), sum_of(option, other));
    };
    picks.push_back(static_cast<std::size_t>(std::ranges::min_element(of_unit, {}, bytes) - of_unit.begin()));
  }
  return picks;
}

ActivationModel::Picks ActivationModel::least_spent() const {
  Picks picks;
  for (const std::vector<Option>& of_unit : options_) {
    const auto spent = [](const Option& option) { return option.us + option.hidden_us; };
    picks.push_back(static_cast<std::size_t>(std::ranges::min_element(of_unit, {}, spent) - of_unit.begin()));
  }
  return picks;
}

std::vector<ActivationModel::Picks> ActivationModel::solve(const Spaces& budget) const {
  std::vector<Picks> found;
  Picks nearest;
  Bytes least_excess = std::numeric_limits<Bytes>::max();
  const Row most = row_of(budget);
  for (const Space least_of : {Space::device, Space::host}) {
    if (std::ranges::find(space_of_, least_of) == space_of_.end()) continue;
    Picks picks = least(least_of);
    Row load = loads(picks);
    while (reduce_excess(picks, load, most)) {
    }
    const Spaces peak = peak_of(load);
    const Bytes excess =
        std::max<Bytes>(0, peak.device - budget.device) + std::max<Bytes>(0, peak.host - budget.host);
    if (excess == 0) improve_in_parts(picks, load, budget, found);
    if (excess < least_excess) least_excess = excess, nearest = picks;
  }
  if (found.empty()) return {nearest};
  std::ranges::stable_sort(found, {}, [this](const Picks& picks) { return us(picks); });
  return found;
}

void ActivationModel::improve_in_parts(const Picks& from, const Row& least_load, const Spaces& budget,
                                       std::vector<Picks>& found) const {
  const Spaces least = peak_of(least_load);
  const int parts = std::clamp(kPartsTimesUnits / options_.count(), 1, kParts);
  for (int part = parts; part > 0; --part) {
    Picks picks = from;
    Row load = least_load;
    const auto share = [&](Bytes low, Bytes high) { return low + (high - low) * part / parts; };
    const Spaces within = {share(least.device, budget.device), share(least.host, budget.host)};
    for (const Spaces& most : {within, budget}) {
      improve(picks, load, row_of(most));
      found.push_back(picks);
    }
  }
}

std::size_t ActivationModel::add_memory(const Program& program, const ActivationSpec& activations,
                                        Space space, std::size_t begin) {
  const IdVector<std::size_t> slots = slots_of(program);
  const std::size_t end = begin + slots.back() + 1;
  IdVector<Bytes> owned(program.instructions.size() + 1);  // of the units, by instruction, as changes
  rest_.resize(std::max(rest_.size(), end));
  space_of_.resize(rest_.size(), space);
  for (const Buffer& buffer : program.buffers) {
    const UnitId unit = owner_of(buffer, activations);
    if (buffer.space != space || unit < 0 || unit >= options_.count()) continue;
    Row& bytes = options_[unit].back().bytes;
    bytes.resize(rest_.size());
    for (const Lifetime& life : buffer.lifetimes) {
      owned[life.first] += buffer.bytes;
      owned[life.last + 1] -= buffer.bytes;
      for (std::size_t slot = slots[life.first]; slot <= slots[life.last]; ++slot)
        bytes[begin + slot] += round_up(buffer.bytes, alignment_of(space));
    }
  }
  const std::vector<CategoryBytes> live = live_bytes(program, space);
  Bytes of_units = 0;
  for (std::size_t at = 0; at < live.size(); ++at) {
    of_units += owned[at];
    Bytes& rest = rest_[begin + slots[at]];
    rest = std::max(rest, std::accumulate(live[at].begin(), live[at].end(), Bytes{0}) - of_units);
  }
  return end;
}

void ActivationModel::add_times(const Program& program, const InstructionCosts& costs) {
  IdVector<double> copying(options_.size());  // since the last use
  for (const Instruction& instruction : program.instructions) {
    if (instruction.op == Opcode::copy && program.flat_of(instruction) < 0)
      copying[instruction.unit] += costs.us(instruction);
    if (instruction.op != Opcode::use) continue;
    const double us = costs.us(instruction);
    if (instruction.pass == Pass::recompute) options_[instruction.unit].back().us += us;
    for (std::size_t unit = 0; unit < copying.size(); ++unit) {
      const double copies = std::exchange(copying[unit], 0.0);
      options_[unit].back().us += std::max(0.0, copies - us);
      options_[unit].back().hidden_us += std::min(copies, us);
    }
  }
}

void ActivationModel::finish(std::size_t unit) {
  std::vector<Option>& options = options_[unit];
  for (Option& option : options) option.bytes.resize(rest_.size());
  const auto beats = [](const Option& a, const Option& b) {
    return a.us <= b.us && a.hidden_us <= b.hidden_us &&
           std::ranges::equal(a.bytes, b.bytes, std::less_equal<>());
  };
  std::vector<Option> kept;
  for (const Option& option : options)
    if (std::ranges::none_of(kept, [&](const Option& other) { return beats(other, option); }))
      kept.push_back(option);
  std::ranges::stable_sort(kept, std::greater<>(), [this](const Option& option) {
    return std::pair(sum_of(option, Space::device), sum_of(option, Space::host));
  });
  for (std::size_t choice = 0; choice < options.size(); ++choice) {
    const auto same = [&](const Option& other) { return other.choice == options[choice].choice; };
    const auto better = [&](const Option& other) { return beats(other, options[choice]); };
    const auto own = std::ranges::find_if(kept, same);
    alike_[choice][unit] = static_cast<std::size_t>(
        (own != kept.end() ? own : std::ranges::find_if(kept, better)) - kept.begin());
  }
  options = std::move(kept);
}

void ActivationModel::merge_slots() {
  std::map<std::pair<Space, Row>, Bytes>
      distinct;  // what all options take in the slot -> the most of the rest
  for (std::size_t slot = 0; slot < rest_.size(); ++slot) {
    Row key;
    for (const std::vector<Option>& of_unit : options_)
      for (const Option& option : of_unit) key.push_back(option.bytes[slot]);
    Bytes& rest = distinct.try_emplace({space_of_[slot], std::move(key)}, 0).first->second;
    rest = std::max(rest, rest_[slot]);
  }
  rest_.clear();
  space_of_.clear();
  for (std::vector<Option>& of_unit : options_)
    for (Option& option : of_unit) option.bytes.clear();
  for (const auto& [key, rest] : distinct) {
    rest_.push_back(rest);
    space_of_.push_back(key.first);
    auto next = key.second.begin();
    for (std::vector<Option>& of_unit : options_)
      for (Option& option : of_unit) option.bytes.push_back(*next++);
  }
}

ActivationModel::Row ActivationModel::loads(const Picks& picks) const {
  Row load = rest_;
  for (std::size_t unit = 0; unit < picks.size(); ++unit)
    for (std::size_t slot = 0; slot < load.size(); ++slot)
      load[slot] += options_[unit][picks[unit]].bytes[slot];
  return load;
}

ActivationModel::Spaces ActivationModel::peak_of(const Row& load) const {
  Spaces peak;
  for (std::size_t slot = 0; slot < load.size(); ++slot) {
    Bytes& of_space = space_of_[slot] == Space::device ? peak.device : peak.host;
    of_space = std::max(of_space, load[slot]);
  }
  return peak;
}

ActivationModel::Row ActivationModel::row_of(const Spaces& bytes) const {
  Row row;
  for (const Space space : space_of_) row.push_back(space == Space::device ? bytes.device : bytes.host);
  return row;
}

ActivationModel::Bytes ActivationModel::sum_of(const Option& option, Space space) const {
  Bytes sum = 0;
  for (std::size_t slot = 0; slot < space_of_.size(); ++slot)
    if (space_of_[slot] == space) sum += option.bytes[slot];
  return sum;
}

bool ActivationModel::reduce_excess(Picks& picks, Row& load, const Row& budget) const {
  Bytes best = 0;
  for (std::size_t slot = 0; slot < load.size(); ++slot)
    best += std::max<Bytes>(0, load[slot] - budget[slot]);
  if (best == 0) return false;
  std::optional<Change> found;
  each_change(picks, [&](const Change& change) {
    Bytes excess = 0;
    for (std::size_t slot = 0; slot < load.size(); ++slot)
      excess += std::max<Bytes>(0, load[slot] + added(picks, change, slot) - budget[slot]);
    if (excess < best) best = excess, found = change;
  });
  if (found) make(picks, load, *found);
  return found.has_value();
}

void ActivationModel::improve(Picks& picks, Row& load, const Row& budget) const {
  do {
    while (improve_one(picks, load, budget)) {
    }
  } while (improve_two(picks, load, budget));
}

bool ActivationModel::improve_one(Picks& picks, Row& load, const Row& budget) const {
  double best = 0;
  Change found{};
  each_change(picks, [&](const Change& change) {
    const double saves = saved_us(picks, change);
    if (saves <= 0) return;
    double share = 1e-9;
    for (std::size_t slot = 0; slot < load.size(); ++slot) {
      const Bytes more = added(picks, change, slot), left = budget[slot] - load[slot];
      if (more > left) return;
      if (more > 0) share = std::max(share, static_cast<double>(more) / static_cast<double>(left));
    }
    if (saves / share > best) best = saves / share, found = change;
  });
  if (best > 0) make(picks, load, found);
  return best > 0;
}

bool ActivationModel::improve_two(Picks& picks, Row& load, const Row& budget) const {
  double best = 0;
  Change up{}, down{};
  each_change(picks, [&](const Change& a) {
    if (saved_us(picks, a) <= best) return;
    each_change(picks, [&](const Change& b) {
      const double saves = saved_us(picks, a) + saved_us(picks, b);
      if (a.unit == b.unit || saves <= best * (1 + 1e-9)) return;
      for (std::size_t slot = 0; slot < load.size(); ++slot)
        if (load[slot] + added(picks, a, slot) + added(picks, b, slot) > budget[slot]) return;
      best = saves, up = a, down = b;
    });
  });
  if (best <= 0) return false;
  make(picks, load, up);
  make(picks, load, down);
  return true;
}

}  // namespace tessera
