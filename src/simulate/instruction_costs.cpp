#include "src/simulate/instruction_costs.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/program/opcodes.h"
#include "tessera/error.h"

namespace tessera {

InstructionCosts::InstructionCosts(const Program& program, const Layout& layout, const Mesh& mesh,
                                   const CostModel& cost, int rank)
    : program_(program), layout_(layout), cost_(cost) {
  if (program.units.size() != layout.units().size())
    throw UsageError(fmt::format("simulate: the program has {} units, the layout {}; it is of another model",
                                 program.units.size(), layout.units().size()));
  if (!cost.forward_flops.empty() && cost.forward_flops.size() != program.units.size())
    throw UsageError(fmt::format("simulate: forward_flops is given for {} units; the program has {}",
                                 cost.forward_flops.size(), program.units.size()));
  if (!cost.part_flops.empty() && cost.part_flops.size() != program.units.size())
    throw UsageError(fmt::format("simulate: part_flops is given for {} units; the program has {}",
                                 cost.part_flops.size(), program.units.size()));
  for (int axis = 0; axis < kGroups; ++axis)
    for (const int member : mesh.group(static_cast<Axis>(axis), rank))
      nodes_[axis].push_back(cost.cluster.node_of(member));
  split_.resize(program.units.size());
  for (const Instruction& instruction : program.instructions)
    if (instruction.op == Opcode::use && instruction.pass == Pass::weight_gradient)
      split_[instruction.unit] = true;
  if (!cost.recompute_flops.empty() && cost.recompute_flops.size() != cost.forward_flops.size())
    throw UsageError(fmt::format("simulate: recompute_flops is given for {} units, forward_flops for {}",
                                 cost.recompute_flops.size(), cost.forward_flops.size()));
}

double InstructionCosts::us(const Instruction& instruction) const {
  if (cost_.duration_us) {
    const double given = cost_.duration_us(program_, instruction);
    if (given >= 0) return given;
  }
  return cost_.issue_us + default_us(instruction);
}

bool InstructionCosts::overlaps_compute(const Instruction& instruction) const {
  return communicates(instruction.op) && instruction.lane != Lane::compute &&
         (is_message(instruction.op) || nodes_[axis_of(instruction)].size() > 1);
}

double InstructionCosts::default_us(const Instruction& instruction) const {
  switch (row_of(instruction.op).cost) {
    case CostRule::flops:
      return use_us(instruction);
    case CostRule::collective:
      return collective_us(instruction);
    case CostRule::message:
      return message_us(instruction);
    case CostRule::memory:
      return memory_us(instruction);
    case CostRule::transfer:
      return transfer_us(instruction);
    case CostRule::nothing:
      return 0;
  }
  return 0;
}

// An opened use is charged where it opens.
double InstructionCosts::use_us(const Instruction& use) const {
  if (use.edge == UseEdge::close) return 0;
  if (!cost_.part_flops.empty()) return part_us(use);
  if (cost_.forward_flops.empty()) return 0;
  const double forward = cost_.forward_flops[use.unit];
  switch (use.pass) {
    case Pass::forward:
      return forward / cost_.flops_per_us;
    case Pass::recompute:
      if (goes_on(use)) return made_us(use);
      return (cost_.recompute_flops.empty() ? forward : cost_.recompute_flops[use.unit]) / cost_.flops_per_us;
    case Pass::backward:
      return (split_[use.unit] ? 1 : 2) * forward / cost_.flops_per_us;
    case Pass::weight_gradient:
      return forward / cost_.flops_per_us;
  }
  return 0;
}

double InstructionCosts::part_us(const Instruction& use) const {
  const IdVector<double>& of_unit = cost_.part_flops[use.unit];
  if (use.part < 0 || use.part >= of_unit.count())
    throw UsageError(
        fmt::format("simulate: part_flops is given for {} parts of unit {}; the program has part {}",
                    of_unit.size(), use.unit, use.part));
  const double flops = of_unit[use.part];
  return flops == 0 && use.pass == Pass::recompute ? made_us(use) : flops / cost_.flops_per_us;
}

// Whether a recompute makes values from what was kept of its own unit.
bool InstructionCosts::goes_on(const Instruction& use) {
  return std::ranges::any_of(use.operands, [](const Operand& operand) {
    return operand.role == Role::value && operand.access == Access::read;
  });
}

double InstructionCosts::made_us(const Instruction& use) const {
  std::int64_t made = 0;
  for (const Operand& operand : use.operands)
    if (operand.role == Role::value && writes(operand.access)) made += bytes(operand);
  return 2 * static_cast<double>(made) / cost_.memory_bytes_per_us;
}

double InstructionCosts::message_us(const Instruction& message) const {
  const IdVector<int>& nodes = nodes_[axis_of(message)];
  return tessera::message_us(cost_.cluster, static_cast<double>(bytes(message.operands.at(0))),
                             nodes.at(program_.pipeline_rank), nodes.at(message.peer));
}

// By the bytes of what all ranks of the group have together: what comes out of a gather, and goes into a sum.
double InstructionCosts::collective_us(const Instruction& instruction) const {
  const Axis axis = axis_of(instruction);
  if (instruction.op == Opcode::reduce_scatter) {
    if (nodes_[axis].size() == 1) return memory_us(instruction);
    return collective_us(CollectiveKind::reduce_scatter, axis, reduced_bytes(instruction, axis));
  }
  const Operand* all = instruction.find(Role::to);
  return collective_us(CollectiveKind::all_gather, axis,
                       bytes(all != nullptr ? *all : instruction.operand(Role::scalars)));
}

// Of a sum to which some ranks contribute, the share of all ranks' bytes that these have.
std::int64_t InstructionCosts::reduced_bytes(const Instruction& sum, Axis axis) const {
  const int ranks = nodes_[axis].count();
  const Operand& part = sum.operand(Role::to);
  const std::int64_t of_a_rank = bytes(part) / bytes_of(part.type) * bytes_of(sum.wire_type());
  return of_a_rank * sum.contributors.among(ranks).count;
}

double InstructionCosts::collective_us(CollectiveKind kind, Axis axis, std::int64_t full_bytes) const {
  const auto [entry, is_new] = known_.try_emplace({kind, axis, full_bytes}, 0.0);
  if (is_new)
    entry->second =
        tessera::collective_us(cost_.cluster, kind, static_cast<double>(full_bytes), nodes_[axis]);
  return entry->second;
}

// Elements of flats: each that is read, and each that is written.
double InstructionCosts::memory_us(const Instruction& instruction) const {
  std::int64_t moved = 0;
  for (const Operand& operand : instruction.operands)
    if (program_.buffers[operand.buffer].flat >= 0)
      moved += bytes(operand) * ((reads(operand.access) ? 1 : 0) + (writes(operand.access) ? 1 : 0));
  const double rate =
      instruction.lane == Lane::host ? cost_.host_memory_bytes_per_us : cost_.memory_bytes_per_us;
  return static_cast<double>(moved) / rate;
}

double InstructionCosts::transfer_us(const Instruction& copy) const {
  const double rate = copy.lane == Lane::io ? cost_.disk_bytes_per_us : cost_.host_link_bytes_per_us;
  return static_cast<double>(bytes(copy.operand(Role::from))) / rate;
}

std::int64_t InstructionCosts::bytes(const Operand& operand) const {
  const Buffer& buffer = program_.buffers[operand.buffer];
  if (operand.region.kind != Region::Kind::part) return operand.region.bytes_of(buffer.bytes);
  return numel_of(layout_.flat(buffer.flat), operand.region.spread) * bytes_of(operand.type);
}

Axis InstructionCosts::axis_of(const Instruction& instruction) const {
  return program_.channels.at(instruction.channel).axis;
}

}  // namespace tessera
