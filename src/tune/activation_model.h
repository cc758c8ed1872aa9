// A linear model of what activations take: of each unit under each choice, during each pass, on top of all
// else; on the device and, where that is bounded, too, on the host. Read off the built programs; searched for
// choices that fit a budget.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "src/simulate/instruction_costs.h"
#include "tessera/program.h"
#include "tessera/step_spec.h"

namespace tessera {

// One pipeline rank's memory: `rest`, and for each unit the row of the option that is picked.
class ActivationModel {
 public:
  using Bytes = std::int64_t;
  // By slot: a forward or backward pass, with what is issued ahead of it, of the device or of the host.
  using Row = std::vector<Bytes>;
  using Picks = std::vector<std::size_t>;  // by unit of the model: index of an option
  struct Option {
    ActivationChoice choice;
    double us = 0;         // what it adds to a step
    double hidden_us = 0;  // copies besides, behind compute
    Row bytes;
  };

  // What a rank takes, or may take.
  struct Spaces {
    Bytes device = 0, host = 0;
  };

  // The host's memory is in it where `host` says so; else it takes none.
  ActivationModel(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs, const CostModel& cost,
                  int rank, std::span<const ActivationChoice> among, bool host);

  const std::vector<std::vector<Option>>& options() const { return options_; }

  // Whether copies take time that other copies may be in the way of.
  bool copies() const;
  void weigh_hidden(double weight) { weight_ = weight; }

  double us(const Picks& picks) const;
  // As us() with all that is hidden.
  double spent_us(const Picks& picks) const;

  Spaces peak(const Picks& picks) const { return peak_of(loads(picks)); }

  // Of each unit the option that takes the least memory of the device, or of the host, over all slots.
  Picks least(Space space = Space::device) const;
  // Of each unit the option with the least spent_us.
  Picks least_spent() const;
  // For each choice, all units with it, or with one that beats it.
  const std::vector<Picks>& alike() const { return alike_; }

  // Little time within `budget`, the least first: from the least memory of either space, the changes that
  // save the most time for the memory they take; then exchanges of two units' options while any saves time.
  // The same within smaller budgets, as it is and taken on from there: what fits these fits, too, and may
  // happen to be better. Where nothing is found to fit, what exceeds the budget least.
  std::vector<Picks> solve(const Spaces& budget) const;

 private:
  // The device's slots or the host's, from `begin` on; their end.
  std::size_t add_memory(const Program& program, Space space, std::size_t begin);

  // What is repeated, and what of its copies is longer than the use that runs meanwhile.
  void add_times(const Program& program, const InstructionCosts& costs);

  // Drops the unit's options that another beats in time and memory, and puts the least memory of the device
  // last.
  void finish(std::size_t unit);

  // Microbatches repeat each other's slots: of those that differ in `rest_` alone, the fullest stays.
  void merge_slots();

  Row loads(const Picks& picks) const;
  Spaces peak_of(const Row& load) const;
  // As much in each slot of a space.
  Row row_of(const Spaces& bytes) const;
  // Over all slots of the space.
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

  // Adds what solve() finds from picks that fit, whose loads these are.
  void improve_in_parts(const Picks& from, const Row& least_load, const Spaces& budget,
                        std::vector<Picks>& found) const;

  // The change that takes the most off what exceeds the budget, summed over the slots.
  bool reduce_excess(Picks& picks, Row& load, const Row& budget) const;

  // As many changes and exchanges as save time.
  void improve(Picks& picks, Row& load, const Row& budget) const;

  // The change that saves the most time for the share it takes of what is left where it is tightest.
  bool improve_one(Picks& picks, Row& load, const Row& budget) const;

  // The exchange that saves the most time.
  bool improve_two(Picks& picks, Row& load, const Row& budget) const;

  std::vector<std::vector<Option>> options_;  // by unit, the least memory of the device last
  std::vector<Picks> alike_;
  Row rest_;
  std::vector<Space> space_of_;  // by slot
  double weight_ = 0;            // of hidden_us
};

}  // namespace tessera
