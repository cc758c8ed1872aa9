#include "tessera/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "src/program/opcodes.h"
#include "tessera/error.h"

namespace tessera {
namespace {

// The default duration of each instruction.
class Costs {
 public:
  Costs(const Program& program, const Layout& layout, const Mesh& mesh, const CostModel& cost)
      : program_(program), layout_(layout), mesh_(mesh), cost_(cost) {
    if (program.flat_buffers.size() != layout.flats().size())
      throw UsageError(fmt::format("simulate: the program has {} flats, the layout {}",
                                   program.flat_buffers.size(), layout.flats().size()));
    if (!cost.forward_flops.empty() && cost.forward_flops.size() != program.units.size())
      throw UsageError(fmt::format("simulate: forward_flops is given for {} units; the program has {}",
                                   cost.forward_flops.size(), program.units.size()));
    if (!(cost.flops_per_us > 0 && cost.memory_bytes_per_us > 0 && cost.link.bytes_per_us > 0))
      throw UsageError("simulate: the rates of the cost model must be above 0");
    find_whole_updates();
  }

  double of(const Instruction& instruction) const {
    if (cost_.duration_us) {
      const double given = cost_.duration_us(program_, instruction);
      if (given >= 0) return given;
    }
    return cost_.issue_us + default_us(instruction);
  }

 private:
  double default_us(const Instruction& instruction) const {
    switch (instruction.op) {
      case Opcode::use:
        return use_us(instruction);
      case Opcode::all_gather:
      case Opcode::reduce_scalars:
        return collective_us(instruction, buffer(instruction.writes.at(0)).bytes);
      case Opcode::send:
        return message_us(buffer(instruction.reads.at(0)));
      case Opcode::receive:
        return message_us(buffer(instruction.writes.at(0)));
      case Opcode::reduce_scatter:
        return collective_us(instruction, buffer(source_of(instruction)).bytes);
      case Opcode::accumulate:
        return memory_us(instruction, layout_.flat(instruction.flat).padded_numel);
      case Opcode::square_sum:
        return memory_us(instruction, layout_.flat(instruction.flat).shard_numel);
      case Opcode::update: {
        const Flat& flat = layout_.flat(instruction.flat);
        const bool whole = updates_whole_[static_cast<std::size_t>(instruction.flat)];
        return memory_us(instruction, whole ? flat.padded_numel : flat.shard_numel);
      }
    }
    return 0;
  }

  // An opened use is charged where it opens.
  double use_us(const Instruction& use) const {
    if (cost_.forward_flops.empty() || use.edge == UseEdge::close) return 0;
    const double forward = cost_.forward_flops[static_cast<std::size_t>(use.unit)];
    return (use.pass == Pass::backward ? 2 * forward : forward) / cost_.flops_per_us;
  }

  // The ring, as in Thakur et al. 2005, "Optimization of collective communication operations in MPICH":
  // N−1 messages of one shard each.
  double collective_us(const Instruction& instruction, std::int64_t full_bytes) const {
    const int ranks = mesh_.extent(program_.channels.at(static_cast<std::size_t>(instruction.channel)).axis);
    const double message = static_cast<double>(full_bytes) / ranks;
    return (ranks - 1) * (cost_.link.alpha_us + message / cost_.link.bytes_per_us);
  }

  double message_us(const Buffer& sent) const {
    return cost_.link.alpha_us + static_cast<double>(sent.bytes) / cost_.link.bytes_per_us;
  }

  // The full gradient: what is read and is not the destination, unless it is reduced in place.
  BufferId source_of(const Instruction& reduction) const {
    for (BufferId read : reduction.reads)
      if (!std::ranges::binary_search(reduction.writes, read)) return read;
    return reduction.writes.at(0);
  }

  // `numel` elements of every flat-sized buffer read, and of every one written.
  double memory_us(const Instruction& instruction, std::int64_t numel) const {
    std::int64_t bytes = 0;
    for (const std::vector<BufferId>* list : {&instruction.reads, &instruction.writes})
      for (BufferId id : *list) bytes += numel * element_bytes(buffer(id));
    return static_cast<double>(bytes) / cost_.memory_bytes_per_us;
  }

  std::int64_t element_bytes(const Buffer& of) const {
    if (of.role == BufferRole::scalars) return 0;
    const bool typed = of.role == BufferRole::parameter || of.role == BufferRole::secondary ||
                       of.role == BufferRole::gathered || of.role == BufferRole::gradient;
    return typed ? bytes_of(layout_.flat(of.flat).dtype) : 4;
  }

  // Where the reduced gradient is gathered, every rank updates everything.
  void find_whole_updates() {
    updates_whole_.assign(layout_.flats().size(), false);
    for (const Instruction& instruction : program_.instructions)
      if (instruction.op == Opcode::all_gather &&
          buffer(instruction.writes.at(0)).role == BufferRole::accumulator)
        updates_whole_.at(static_cast<std::size_t>(instruction.flat)) = true;
  }

  const Buffer& buffer(BufferId id) const { return program_.buffers.at(static_cast<std::size_t>(id)); }

  const Program& program_;
  const Layout& layout_;
  const Mesh& mesh_;
  const CostModel& cost_;
  std::vector<bool> updates_whole_;  // by flat
};

nlohmann::json metadata(const char* what, int rank, int lane, nlohmann::json arguments) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", lane}, {"args", std::move(arguments)}};
}

nlohmann::json bar(const Program& program, const Span& span, int rank) {
  const Instruction& instruction = program.instructions.at(static_cast<std::size_t>(span.instruction));
  nlohmann::json arguments = {{"instruction", span.instruction}};
  if (instruction.unit >= 0) arguments["unit"] = program.units.at(static_cast<std::size_t>(instruction.unit));
  if (instruction.microbatch >= 0) arguments["microbatch"] = instruction.microbatch;
  return {{"name", describe(program, span.instruction)},
          {"cat", std::string(name_of(instruction.op))},
          {"ph", "X"},
          {"pid", rank},
          {"tid", static_cast<int>(span.lane)},
          {"ts", span.start_us},
          {"dur", span.end_us - span.start_us},
          {"args", std::move(arguments)}};
}

}  // namespace

double Timeline::hidden() const {
  if (communication_us <= 0) return 1;
  return std::clamp(1 - exposed_us / communication_us, 0.0, 1.0);
}

Timeline simulate(const Program& program, const Layout& layout, const Mesh& mesh, const CostModel& cost) {
  const Costs costs(program, layout, mesh, cost);
  Timeline timeline;
  std::array<double, kLanes> free_us{};  // when each lane is done with what it has been given
  timeline.spans.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    double& lane_free = free_us.at(static_cast<std::size_t>(instruction.lane));
    const double issued = cost.compute_issues ? free_us[static_cast<std::size_t>(Lane::compute)] : 0;
    double start = std::max(lane_free, issued);
    for (InstructionId wait : instruction.waits)
      start = std::max(start, timeline.spans.at(static_cast<std::size_t>(wait)).end_us);
    const double duration = costs.of(instruction);
    lane_free = start + duration;
    timeline.spans.push_back({.instruction = static_cast<InstructionId>(timeline.spans.size()),
                              .lane = instruction.lane,
                              .start_us = start,
                              .end_us = lane_free});
    timeline.total_us = std::max(timeline.total_us, lane_free);
    if (instruction.lane == Lane::compute) {
      timeline.compute_us += duration;
    } else if (is_collective(instruction.op)) {
      timeline.communication_us += duration;
    }
  }
  timeline.exposed_us = timeline.total_us - timeline.compute_us;
  return timeline;
}

void write_chrome_trace(std::ostream& out, const Program& program, std::span<const Span> spans, int rank) {
  std::array<bool, kLanes> used{};
  for (const Span& span : spans) used.at(static_cast<std::size_t>(span.lane)) = true;
  // A name that is not UTF-8 must not make the file unreadable.
  const auto text = [](const nlohmann::json& event) {
    return event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      << text(metadata("process_name", rank, 0, {{"name", fmt::format("rank {}", rank)}}));
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!used[static_cast<std::size_t>(lane)]) continue;
    const std::string name(name_of(static_cast<Lane>(lane)));
    out << ",\n" << text(metadata("thread_name", rank, lane, {{"name", name}}));
    out << ",\n" << text(metadata("thread_sort_index", rank, lane, {{"sort_index", lane}}));
  }
  for (const Span& span : spans) out << ",\n" << text(bar(program, span, rank));
  out << "\n]}\n";
}

}  // namespace tessera
