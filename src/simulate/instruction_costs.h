// The duration of each instruction of one rank under a cost model, from when it can run.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "tessera/simulate.h"

namespace tessera {

class InstructionCosts {
 public:
  // All arguments must outlive this object. UsageError if layout or cost model do not fit the program.
  InstructionCosts(const Program& program, const Layout& layout, const Mesh& mesh, const CostModel& cost,
                   int rank);

  double us(const Instruction& instruction) const;
  // Whether the instruction exchanges data with other ranks, off the compute lane.
  bool overlaps_compute(const Instruction& instruction) const;

 private:
  double default_us(const Instruction& instruction) const;
  double use_us(const Instruction& use) const;
  static bool goes_on(const Instruction& use);
  double made_us(const Instruction& use) const;
  double part_us(const Instruction& use) const;
  double message_us(const Instruction& message) const;
  double collective_us(const Instruction& instruction) const;
  std::int64_t reduced_bytes(const Instruction& sum, Axis axis) const;
  double collective_us(CollectiveKind kind, Axis axis, std::int64_t full_bytes) const;
  double memory_us(const Instruction& instruction) const;
  double transfer_us(const Instruction& copy) const;
  // The bytes of the operand's region on this rank.
  std::int64_t bytes(const Operand& operand) const;
  Axis axis_of(const Instruction& instruction) const;

  const Program& program_;
  const Layout& layout_;
  const CostModel& cost_;
  IdArray<IdVector<int>, kGroups> nodes_;  // by axis: the nodes of the members of the rank's group
  IdVector<bool> split_;                   // [unit] whether its weight gradients run apart
  mutable std::map<std::tuple<CollectiveKind, Axis, std::int64_t>, double> known_;
};

}  // namespace tessera
