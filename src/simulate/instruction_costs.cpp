#include "src/simulate/instruction_costs.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/program/opcodes.h"
#include "tessera/error.h"

namespace tessera {

InstructionCosts::InstructionCosts(const Program& program, const Layout& layout, const Mesh& mesh,
                                   const CostModel& cost, int rank)
    : program_(program), layout_(layout), cost_(cost) {
  if (program.flat_buffers.size() != layout.flats().size())
    throw UsageError(fmt::format("simulate: the program has {} flats, the layout {}",
                                 program.flat_buffers.size(), layout.flats().size()));
  if (!cost.forward_flops.empty() && cost.forward_flops.size() != program.units.size())
    throw UsageError(fmt::format("simulate: forward_flops is given for {} units; the program has {}",
                                 cost.forward_flops.size(), program.units.size()));
  for (int axis = 0; axis < kGroups; ++axis)
    for (const int member : mesh.group(static_cast<Axis>(axis), rank))
      nodes_[static_cast<std::size_t>(axis)].push_back(cost.cluster.node_of(member));
  if (!cost.recompute_flops.empty() && cost.recompute_flops.size() != cost.forward_flops.size())
    throw UsageError(fmt::format("simulate: recompute_flops is given for {} units, forward_flops for {}",
                                 cost.recompute_flops.size(), cost.forward_flops.size()));
  find_whole_updates();
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
         (is_message(instruction.op) || nodes_[static_cast<std::size_t>(axis_of(instruction))].size() > 1);
}

double InstructionCosts::default_us(const Instruction& instruction) const {
  const auto flat = [&]() -> const Flat& { return layout_.flat(instruction.flat); };
  switch (instruction.op) {
    case Opcode::use:
      return use_us(instruction);
    case Opcode::all_gather:
      return gather_us(instruction);
    case Opcode::reduce_scalars:
      return collective_us(CollectiveKind::all_gather, axis_of(instruction),
                           slots_bytes(buffer(instruction.writes.at(0))));
    case Opcode::send:
    case Opcode::receive:
      return message_us(instruction);
    case Opcode::reduce_scatter:
      return reduction_us(instruction);
    case Opcode::accumulate:  // without a microbatch: what another pipeline rank has of a tied flat
      return memory_us(instruction, instruction.microbatch < 0 ? flat().slice_numel : flat().padded_numel,
                       cost_.memory_bytes_per_us);
    case Opcode::square_sum:
      return memory_us(instruction, flat().slice_numel, cost_.memory_bytes_per_us);
    case Opcode::copy:
      return copy_us(instruction);
    case Opcode::update: {
      const bool whole = updates_whole_[static_cast<std::size_t>(instruction.flat)];
      return memory_us(
          instruction,
          whole                          ? flat().padded_numel
          : program_.state_over_replicas ? flat().slice_numel
                                         : flat().shard_numel,
          instruction.lane == Lane::host ? cost_.host_memory_bytes_per_us : cost_.memory_bytes_per_us);
    }
  }
  return 0;
}

// An opened use is charged where it opens.
double InstructionCosts::use_us(const Instruction& use) const {
  if (cost_.forward_flops.empty() || use.edge == UseEdge::close) return 0;
  const auto unit = static_cast<std::size_t>(use.unit);
  const double forward = cost_.forward_flops[unit];
  switch (use.pass) {
    case Pass::forward:
      return forward / cost_.flops_per_us;
    case Pass::recompute:
      if (use.selective) return selective_us(use);
      return (cost_.recompute_flops.empty() ? forward : cost_.recompute_flops[unit]) / cost_.flops_per_us;
    case Pass::backward:
      return 2 * forward / cost_.flops_per_us;
  }
  return 0;
}

double InstructionCosts::selective_us(const Instruction& use) const {
  const BufferId made =
      program_.unit_buffers[static_cast<std::size_t>(use.unit)].recomputable.of(use.microbatch);
  return made < 0 ? 0 : 2 * static_cast<double>(buffer(made).bytes) / cost_.memory_bytes_per_us;
}

double InstructionCosts::message_us(const Instruction& message) const {
  const BufferId carried = (message.op == Opcode::send ? message.reads : message.writes).at(0);
  const std::int64_t bytes =
      message.flat < 0 ? buffer(carried).bytes : 4 * layout_.flat(message.flat).slice_numel;
  const std::vector<int>& nodes = nodes_[static_cast<std::size_t>(axis_of(message))];
  return tessera::message_us(cost_.cluster, static_cast<double>(bytes),
                             nodes.at(static_cast<std::size_t>(program_.pipeline_rank)),
                             nodes.at(static_cast<std::size_t>(message.peer)));
}

// Along the shard axis a whole flat, along the replicate axis a shard, whatever buffer it is a part of.
double InstructionCosts::gather_us(const Instruction& gather) const {
  const Flat& flat = layout_.flat(gather.flat);
  const Axis axis = axis_of(gather);
  const std::int64_t element = element_bytes(buffer(gather.writes.at(0)));
  return collective_us(CollectiveKind::all_gather, axis,
                       element * (axis == Axis::replicate ? flat.shard_numel : flat.padded_numel));
}

double InstructionCosts::reduction_us(const Instruction& reduction) const {
  const Flat& flat = layout_.flat(reduction.flat);
  const Axis axis = axis_of(reduction);
  if (axis == Axis::replicate)
    return collective_us(CollectiveKind::reduce_scatter, axis, 4 * flat.shard_numel);
  if (nodes_[static_cast<std::size_t>(axis)].size() == 1)
    return memory_us(reduction, flat.shard_numel, cost_.memory_bytes_per_us);
  const bool of_sums = program_.flat_buffers[static_cast<std::size_t>(reduction.flat)].local_sum >= 0;
  return collective_us(CollectiveKind::reduce_scatter, axis,
                       (of_sums ? 4 : bytes_of(flat.dtype)) * flat.padded_numel);
}

double InstructionCosts::collective_us(CollectiveKind kind, Axis axis, std::int64_t full_bytes) const {
  const auto [entry, is_new] = known_.try_emplace({kind, axis, full_bytes}, 0.0);
  if (is_new)
    entry->second = tessera::collective_us(cost_.cluster, kind, static_cast<double>(full_bytes),
                                           nodes_[static_cast<std::size_t>(axis)]);
  return entry->second;
}

// `numel` elements of every flat-sized buffer read, and of every one written.
double InstructionCosts::memory_us(const Instruction& instruction, std::int64_t numel,
                                   double bytes_per_us) const {
  std::int64_t bytes = 0;
  for (const std::vector<BufferId>* list : {&instruction.reads, &instruction.writes})
    for (BufferId id : *list) bytes += numel * element_bytes(buffer(id));
  return static_cast<double>(bytes) / bytes_per_us;
}

// What both ends hold.
double InstructionCosts::copy_us(const Instruction& copy) const {
  const std::int64_t bytes = std::min(buffer(copy.reads.at(0)).bytes, buffer(copy.writes.at(0)).bytes);
  const double rate = copy.lane == Lane::io ? cost_.disk_bytes_per_us : cost_.host_link_bytes_per_us;
  return static_cast<double>(bytes) / rate;
}

std::int64_t InstructionCosts::element_bytes(const Buffer& of) const {
  return of.flat < 0 ? 0 : of.bytes / numel_of(layout_.flat(of.flat), of.part);
}

// Where the reduced gradient is gathered over the shards, every rank updates everything.
void InstructionCosts::find_whole_updates() {
  updates_whole_.assign(layout_.flats().size(), false);
  for (const Instruction& instruction : program_.instructions)
    if (instruction.op == Opcode::all_gather && axis_of(instruction) == Axis::shard &&
        buffer(instruction.writes.at(0)).role == BufferRole::accumulator)
      updates_whole_.at(static_cast<std::size_t>(instruction.flat)) = true;
}

Axis InstructionCosts::axis_of(const Instruction& instruction) const {
  return program_.channels.at(static_cast<std::size_t>(instruction.channel)).axis;
}

}  // namespace tessera
