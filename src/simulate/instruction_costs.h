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
  double gather_us(const Instruction& gather) const;
  double reduction_us(const Instruction& reduction) const;
  double collective_us(CollectiveKind kind, Axis axis, std::int64_t full_bytes) const;
  double memory_us(const Instruction& instruction, std::int64_t numel, double bytes_per_us) const;
  double copy_us(const Instruction& copy) const;
  std::int64_t element_bytes(const Buffer& of) const;
  void find_whole_updates();
  Axis axis_of(const Instruction& instruction) const;
  const Buffer& buffer(BufferId id) const { return program_.buffers.at(static_cast<std::size_t>(id)); }

  const Program& program_;
  const Layout& layout_;
  const CostModel& cost_;
  std::array<std::vector<int>, kGroups> nodes_;  // by axis: of the members of the rank's group
  std::vector<bool> updates_whole_;              // by flat
  mutable std::map<std::tuple<CollectiveKind, Axis, std::int64_t>, double> known_;
};

}  // namespace tessera
