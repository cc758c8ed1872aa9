// A linear model of the memory of activations. For each unit and choice it has the bytes that they add during
// each pass, on the device and, if the host has a budget, on the host. The numbers come from built programs.
// The model is searched for choices that fit a budget.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "src/simulate/instruction_costs.h"
#include "src/tune/value_choices.h"
#include "tessera/program.h"
#include "tessera/step_spec.h"

namespace tessera {

// One pipeline rank's memory: the row `rest_`, plus for each unit the row of the option that is picked.
class ActivationModel {
 public:
  using Bytes = std::int64_t;
  // Bytes by slot. A slot is a forward or backward pass, with what is issued ahead of it, in the memory of
  // the device or of the host.
  using Row = std::vector<Bytes>;
  using Picks = std::vector<std::size_t>;  // by unit of the model: index into its options
  struct Option {
    ActivationChoice choice;
    double us = 0;         // time that it adds to a step
    double hidden_us = 0;  // time of further copies, hidden by compute
    Row bytes;
  };

  // The memory that a rank takes or may take.
  struct Spaces {
    Bytes device = 0, host = 0;
  };

  // An option of each unit is its choice in one of `tried`. `host`: whether the model includes the host's
  // memory. If not, that counts as 0.
  ActivationModel(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs, const CostModel& cost,
                  int rank, std::span<const UnitChoices> tried, bool host);

  const std::vector<std::vector<Option>>& options() const { return options_; }

  // Whether any option has hidden copies, which other copies may delay.
  bool copies() const;
  void weigh_hidden(double weight) { weight_ = weight; }

  double us(const Picks& picks) const;
  // us() plus all hidden time.
  double spent_us(const Picks& picks) const;

  Spaces peak(const Picks& picks) const { return peak_of(loads(picks)); }

  // For each unit the option with the least memory on the device, or on the host, summed over all slots.
  Picks least(Space space = Space::device) const;
  // For each unit the option with the least spent_us().
  Picks least_spent() const;
  // For each of those tried, the picks with its choices; an option that another beats is replaced by
  // that one.
  const std::vector<Picks>& alike() const { return alike_; }

  // Picks that take little time within `budget`, the fastest first. The search starts from the least memory
  // in either space. It makes the changes that save the most time for the memory that they take, and then
  // exchanges two units' options while that saves time. It does the same within smaller budgets, and also
  // continues from those results: they fit the budget, and may happen to be better. If nothing is found that
  // fits, the result is the picks that exceed the budget least.
  std::vector<Picks> solve(const Spaces& budget) const;

 private:
  // Adds the slots of the device or of the host, from slot `begin` on. Returns the end.
  std::size_t add_memory(const Program& program, const ActivationSpec& activations, Space space,
                         std::size_t begin);

  // Adds the time of recomputation, and of copies as far as they take longer than the use that runs
  // meanwhile.
  void add_times(const Program& program, const InstructionCosts& costs);

  // Drops the unit's options that another option beats in time and memory. Puts the option with the least
  // memory of the device last.
  void finish(std::size_t unit);

  // Microbatches repeat each other's slots. Of slots that differ only in `rest_`, keeps the fullest.
  void merge_slots();

  Row loads(const Picks& picks) const;
  Spaces peak_of(const Row& load) const;
  // A row with the same bytes in each slot of a space.
  Row row_of(const Spaces& bytes) const;
  // The sum over all slots of the space.
  Bytes sum_of(const Option& option, Space space) const;

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

  // Adds to `found` what solve() finds from the picks `from`, which fit, and whose loads are `least_load`.
  void improve_in_parts(const Picks& from, const Row& least_load, const Spaces& budget,
                        std::vector<Picks>& found) const;

  // Makes the change that reduces the excess over the budget, summed over the slots, the most. False if there
  // is none.
  bool reduce_excess(Picks& picks, Row& load, const Row& budget) const;

  // Makes changes and exchanges while they save time.
  void improve(Picks& picks, Row& load, const Row& budget) const;

  // Makes the change that saves the most time per memory. The memory is counted as the share of what is left,
  // in the slot where that share is largest. False if there is none.
  bool improve_one(Picks& picks, Row& load, const Row& budget) const;

  // Makes the exchange that saves the most time. False if there is none.
  bool improve_two(Picks& picks, Row& load, const Row& budget) const;

  IdVector<std::vector<Option>> options_;  // by unit, the least memory of the device last
  std::vector<Picks> alike_;
  Row rest_;
  std::vector<Space> space_of_;  // by slot
  double weight_ = 0;            // weight of hidden_us in us()
};

}  // namespace tessera
