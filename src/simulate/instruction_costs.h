// How long each instruction of one rank takes under a cost model, once it can run.
#pragma once

#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "tessera/simulate.h"

namespace tessera {

class InstructionCosts {
 public:
  // All must outlive it. UsageError where layout or cost model do not fit the program.
  InstructionCosts(const Program& program, const Layout& layout, const Mesh& mesh, const CostModel& cost,
                   int rank);

  double us(const Instruction& instruction) const;
  // Whether it exchanges anything with other ranks, off the compute lane.
  bool overlaps_compute(const Instruction& instruction) const;

 private:
  double default_us(const Instruction& instruction) const;
  double use_us(const Instruction& use) const;
  double selective_us(const Instruction& use) const;
  double message_us(const Instruction& message) const;
  double collective_us(const Instruction& instruction) const;
  double collective_us(CollectiveKind kind, Axis axis, std::int64_t full_bytes) const;
  double memory_us(const Instruction& instruction) const;
  double transfer_us(const Instruction& copy) const;
  // In the operand's region, on this rank.
  std::int64_t bytes(const Operand& operand) const;
  Axis axis_of(const Instruction& instruction) const;

  const Program& program_;
  const Layout& layout_;
  const CostModel& cost_;
  std::array<std::vector<int>, kGroups> nodes_;  // by axis: of the members of the rank's group
  mutable std::map<std::tuple<CollectiveKind, Axis, std::int64_t>, double> known_;
};

}  // namespace tessera
