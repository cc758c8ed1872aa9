#include <fmt/format.h>

#include <algorithm>
#include <ranges>

#include "src/program/opcodes.h"
#include "src/verify/checks.h"

namespace tessera {
namespace {

class Structure {
 public:
  Structure(const Program& program, int index, const Mesh& mesh, Findings& findings)
      : program_(program), index_(index), mesh_(mesh), findings_(findings) {}

  void run() {
    check_channels();
    for (InstructionId id = 0; id < program_.instructions.count(); ++id) {
      const Instruction& instruction = program_.instructions[id];
      check_names(id, instruction);
      check_waits(id, instruction);
      if (!check_operands(id, instruction)) continue;
      check_channel(id, instruction);
      check_spaces(id, instruction);
      check_alike(id, instruction);
    }
  }

 private:
  // describe() follows ids itself, so a message about a bad one names the instruction by its number.
  void report(InstructionId id, const std::string& what) {
    findings_.add(Fault::malformed, index_, {id},
                  fmt::format("#{} {} {}", id, name_of(program_.instructions[id].op), what));
  }

  void check_channels() {
    for (std::size_t i = 0; i < program_.channels.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (program_.channels[i] == program_.channels[j])
          findings_.add(Fault::malformed, index_, {},
                        fmt::format("channels {} and {} are the same axis and lane", j, i));
  }

  void check_names(InstructionId id, const Instruction& instruction) {
    if (static_cast<int>(instruction.lane) >= kLanes)
      report(id, fmt::format("is on lane {}, which does not exist", static_cast<int>(instruction.lane)));
    const auto units = program_.units.count();
    if (instruction.unit < -1 || instruction.unit >= units ||
        (instruction.unit == -1 && instruction.op == Opcode::use))
      report(id, fmt::format("is of unit {}; the program has {} units", instruction.unit, units));
    if (instruction.microbatch < -1 || instruction.microbatch >= program_.microbatches)
      report(id, fmt::format("is of microbatch {}; the program has {}", instruction.microbatch,
                             program_.microbatches));
    if (instruction.part < -1 || (instruction.part >= 0 && instruction.op != Opcode::use))
      report(id, fmt::format("is of part {}, which is none", instruction.part));
    if (instruction.op != Opcode::reduce_scatter &&
        (!instruction.contributors.all() || instruction.wire != DType::fp32))
      report(id, "says who contributes, but it adds up nothing over ranks");
  }

  void check_waits(InstructionId id, const Instruction& instruction) {
    for (InstructionId wait : instruction.waits)
      if (wait < 0 || wait >= id)
        report(id, fmt::format("waits for #{}, which is not an earlier instruction", wait));
    if (!std::ranges::is_sorted(instruction.waits)) report(id, "has waits that do not ascend");
  }

  bool exists(BufferId id) const { return id >= 0 && id < program_.buffers.count(); }

  // Whether all of them are there, so that the checks behind this one can follow them.
  bool check_operands(InstructionId id, const Instruction& instruction) {
    const OpRow& row = row_of(instruction.op);
    if (instruction.when >= 0 && (!exists(instruction.when) || !is_decision(buffer(instruction.when).role)))
      report(id, fmt::format("depends on buffer {}, which is no decision", instruction.when));
    if (instruction.op == Opcode::update && instruction.when < 0) report(id, "depends on no decision");
    if (instruction.when >= 0 && !can_be_guarded(instruction.op))
      report(id, "depends on a decision, but is for its peers or its trainer to run whatever is decided");
    bool known = instruction.when < 0 || exists(instruction.when);
    for (const Operand& operand : instruction.operands) {
      if (!exists(operand.buffer)) {
        report(id, fmt::format("has operand {} in buffer {}; the program has {}", name_of(operand.role),
                               operand.buffer, program_.buffers.size()));
        known = false;
        continue;
      }
      const RoleRow* role = row.role(operand.role);
      if (role == nullptr)
        report(id, fmt::format("has an operand {}, which is not for it", name_of(operand.role)));
      else if ((role->accesses & set_of(operand.access)) == 0)
        report(id, fmt::format("has operand {} to {}, which is not for it", name_of(operand.role),
                               name_of(operand.access)));
      check_region(id, operand);
    }
    for (const RoleRow& role : row.roles) {
      const auto count = std::ranges::count(instruction.operands, role.role, &Operand::role);
      if (role.count == RoleRow::Count::one && count != 1)
        report(id, fmt::format("has {} operands {}; it must have one", count, name_of(role.role)));
      if (role.count == RoleRow::Count::optional && count > 1)
        report(id, fmt::format("has {} operands {}; it may have one", count, name_of(role.role)));
      known &= role.count != RoleRow::Count::one || count == 1;
    }
    return known && check_same_flat(id, instruction);
  }

  // What others wait for is run in any case.
  static bool can_be_guarded(Opcode op) {
    return op != Opcode::use && op != Opcode::reduce_scalars && !is_message(op);
  }

  void check_region(InstructionId id, const Operand& operand) {
    const Buffer& of = buffer(operand.buffer);
    const Region& region = operand.region;
    const bool of_flat = is_of_flat(region.kind);
    if (of_flat && of.flat < 0)
      report(id, fmt::format("touches the {} of '{}', which is of no flat", name_of(region.kind), of.name));
    if (of_flat && operand.type != of.type)
      report(id,
             fmt::format("takes '{}' for {}; it holds {}", of.name, name_of(operand.type), name_of(of.type)));
    const bool some = region.kind == Region::Kind::parameter || region.kind == Region::Kind::gaps;
    const Opcode op = program_.at(id).op;
    if (some && op != Opcode::use && op != Opcode::zero)
      report(id, fmt::format("touches the {} of '{}' only, which it cannot", name_of(region.kind), of.name));
    // What is held is cut over at least these axes: a region is a part of it.
    if (region.kind == Region::Kind::part && !region.spread.axes.contains(of.spread.axes))
      report(id, fmt::format("touches {} of '{}', which holds only {}", to_string(region.spread), of.name,
                             to_string(of.spread)));
    const bool value = region.kind == Region::Kind::value;
    const bool of_value = operand.role == Role::value || program_.at(id).lane == Lane::exchange;
    if (value != of_value || (value && !holds_value(program_.at(id), region.value, of)))
      report(id, fmt::format("touches value {} in '{}', which does not hold it", region.value, of.name));
    check_piece(id, region, of);
    if (region.kind != Region::Kind::sum) return;
    if (of.role != BufferRole::scalars || region.parameter < kAllParameters ||
        square_sum_slot(region.parameter) + kSquareSlots > program_.scalars_numel)
      report(id, fmt::format("adds to sum {} of '{}', where none is", region.parameter, of.name));
  }

  const ValuePiece* piece_of(const Instruction& instruction, ValueId value) const {
    if (instruction.unit < 0 || instruction.unit >= program_.units.count()) return nullptr;
    return program_.units[instruction.unit].piece(value);
  }

  // The bytes of a piece are those that its unit says, within the buffer.
  void check_piece(InstructionId id, const Region& region, const Buffer& of) {
    const ValuePiece* const piece =
        region.kind == Region::Kind::value ? piece_of(program_.at(id), region.value) : nullptr;
    const std::int64_t begin = piece == nullptr ? 0 : piece->begin, end = piece == nullptr ? 0 : piece->end;
    if (region.begin != begin || region.end != end || end > of.bytes || begin < 0 || begin > end)
      report(id, fmt::format("touches bytes {} to {} of the {} of '{}'; what it names has {} to {}",
                             region.begin, region.end, of.bytes, of.name, begin, end == 0 ? of.bytes : end));
  }

  bool holds_value(const Instruction& instruction, ValueId value, const Buffer& of) const {
    const UnitId unit = instruction.unit;
    const ValuePiece* const piece = piece_of(instruction, value);
    const ValueId whole = piece == nullptr ? value : piece->of;
    if (whole >= 0) return (of.role == BufferRole::value || of.role == BufferRole::cache) && of.unit == unit;
    // A use has roles for what units share, all of it.
    if (piece == nullptr && instruction.lane != Lane::exchange) return false;
    const bool of_input = whole == SharedValue::input || whole == SharedValue::input_gradient;
    const bool gradient = whole == SharedValue::output_gradient || whole == SharedValue::input_gradient;
    return whole != SharedValue::batch && of.unit == (of_input ? unit - 1 : unit) &&
           of.role == (gradient ? BufferRole::output_gradient : BufferRole::output);
  }

  // What is computed element by element takes the same elements of all its operands; sums are fp32.
  void check_alike(InstructionId id, const Instruction& instruction) {
    if (instruction.op != Opcode::update && instruction.op != Opcode::accumulate &&
        instruction.op != Opcode::reduce_scatter)
      return;
    const Operand* to = instruction.find(Role::to);
    if (to != nullptr && to->type != DType::fp32)
      report(id, fmt::format("sums in {}; sums are fp32", name_of(to->type)));
    if (instruction.op == Opcode::reduce_scatter) return;
    for (const Operand& operand : instruction.operands)
      if (operand.region != instruction.operands.front().region)
        report(id, fmt::format("takes other elements of its {} than of its {}", name_of(operand.role),
                               name_of(instruction.operands.front().role)));
  }

  // All operands but a use's are of one flat, or of none.
  bool check_same_flat(InstructionId id, const Instruction& instruction) {
    if (instruction.op == Opcode::use) return true;
    const FlatId flat = program_.flat_of(instruction);
    for (const Operand& operand : instruction.operands) {
      const Buffer& of = buffer(operand.buffer);
      if (of.flat < 0 || of.flat == flat) continue;
      report(id, fmt::format("touches '{}', which is of flat {}, and what is of flat {}", of.name, of.flat,
                             flat));
      return false;
    }
    return true;
  }

  void check_channel(InstructionId id, const Instruction& instruction) {
    if (static_cast<int>(instruction.lane) >= kLanes) return;  // reported already
    const OpRow& row = row_of(instruction.op);
    if (!row.runs_on(instruction.lane))
      return report(id, fmt::format("runs on lane {}, which is not for it", name_of(instruction.lane)));
    const auto channels = program_.channels.count();
    if (instruction.channel < -1 || instruction.channel >= channels) {
      report(id, fmt::format("uses channel {}; the program has {}", instruction.channel, channels));
    } else if (communicates(instruction.op) != (instruction.channel >= 0)) {
      report(id, communicates(instruction.op) ? "communicates without a channel"
                                              : "has a channel but does not communicate");
    } else if (instruction.channel < 0) {
      return;
    } else if (program_.channels[instruction.channel].lane != instruction.lane) {
      report(id,
             fmt::format("runs on lane {}, but its channel belongs to another", name_of(instruction.lane)));
    } else if (const Axis axis = program_.channels[instruction.channel].axis; !row.axes.contains(axis)) {
      report(id, fmt::format("goes along axis {}, which is not for it", name_of(axis)));
    } else if (is_message(instruction.op)) {
      check_message(id, instruction);
    } else {
      check_cut(id, instruction, axis);
    }
  }

  // A rank that does not contribute to a sum has no part of it to give.
  void check_contributors(InstructionId id, const Instruction& sum, Axis axis) {
    const int ranks = mesh_.extent(axis);
    const auto [first, count] = sum.contributors;
    if (first < 0 || count < (first > 0 ? 1 : 0) || count > ranks - first || count == ranks)
      report(id,
             fmt::format("adds up parts of {} ranks from rank {} on along {}; it must be fewer than its {}, "
                         "and within them, or 0 from rank 0 on for all",
                         count, first, name_of(axis), ranks));
    const bool contributes = sum.find(Role::from) != nullptr;
    if (!contributes && sum.contributors.all())
      report(id, "has nothing to add up, but every rank contributes");
    if (contributes && sum.wire != DType::fp32) report(id, "says the type of what it adds up twice");
  }

  // Each rank has an equal part of what the ranks make together.
  void check_exchange(InstructionId id, const Instruction& exchange, Axis axis) {
    if (axis != Axis::tensor) return report(id, fmt::format("exchanges values along axis {}", name_of(axis)));
    const Operand* const from = exchange.find(Role::from);
    if (from == nullptr || !exchange.contributors.all())
      return report(id, "exchanges a value that not every rank has");
    const bool gathers = exchange.op == Opcode::all_gather;
    const Operand& to = exchange.operand(Role::to);
    const auto of_sum = [&](std::int64_t bytes) {
      return gathers ? bytes : bytes / bytes_of(from->type) * bytes_of(DType::fp32);
    };
    const int ranks = mesh_.extent(axis);
    const auto match = [&](std::int64_t given, std::int64_t made) {
      return gathers ? made == given * ranks : given == made * ranks;
    };
    const std::int64_t given = of_sum(from->region.bytes_of(buffer(from->buffer).bytes));
    const std::int64_t made = to.region.bytes_of(buffer(to.buffer).bytes);
    if (!match(given, made))
      report(id,
             fmt::format("makes {} bytes of {}, on {} ranks along {}", made, given, ranks, name_of(axis)));
    else if (!match(of_sum(from->region.begin), to.region.begin))
      report(id, fmt::format("makes a piece from byte {} on of one from byte {} on, which is another",
                             to.region.begin, from->region.begin));
    if (!gathers && exchange.operand(Role::to).access != Access::write) report(id, "adds to a value");
  }

  // A gather undoes the cut over its axis, a reduction makes it.
  void check_cut(InstructionId id, const Instruction& instruction, Axis axis) {
    if (axis == Axis::world) return;
    if (instruction.lane == Lane::exchange) return check_exchange(id, instruction, axis);
    const bool gathers = instruction.op == Opcode::all_gather;
    const Region& parts = instruction.operand(gathers ? Role::from : Role::to).region;
    if (!gathers) check_contributors(id, instruction, axis);
    if (instruction.find(Role::from) == nullptr) {
      if (parts.kind != Region::Kind::part || !parts.spread.axes.contains(axis))
        report(id, fmt::format("goes along axis {} to {}, which is not cut along it", name_of(axis),
                               to_string(parts.spread)));
      return;
    }
    const Region& all = instruction.operand(gathers ? Role::to : Role::from).region;
    if (parts.kind != Region::Kind::part || all.kind != Region::Kind::part ||
        !parts.spread.axes.contains(axis) || all.spread.axes != parts.spread.axes.without(axis))
      report(id, fmt::format("goes along axis {} between {} and {}, which differ otherwise", name_of(axis),
                             to_string(instruction.operand(Role::from).region.spread),
                             to_string(instruction.operand(Role::to).region.spread)));
  }

  // Copies go between spaces, on the lane for it; the host's lane works on the host, all others on the
  // device.
  void check_spaces(InstructionId id, const Instruction& instruction) {
    if (instruction.op == Opcode::copy) {
      const Operand& source = instruction.operand(Role::from);
      const Operand& target = instruction.operand(Role::to);
      const Buffer& from = buffer(source.buffer);
      const Buffer& to = buffer(target.buffer);
      if (lane_between(from.space, to.space) != instruction.lane)
        report(id, fmt::format("copies from {} to {} on lane {}, which is not for it", name_of(from.space),
                               name_of(to.space), name_of(instruction.lane)));
      const bool alike = source.region == target.region && from.flat == to.flat &&
                         (from.flat >= 0 ? from.type == to.type : from.bytes == to.bytes);
      if (!alike)
        report(id, fmt::format("copies '{}' to '{}', which cannot hold the same", from.name, to.name));
      for (const Operand* end : {&source, &target})  // the disk moves all that a buffer has
        if (buffer(end->buffer).space == Space::disk && end->region.kind == Region::Kind::part &&
            end->region.spread != buffer(end->buffer).spread)
          report(id, fmt::format("moves a part of '{}', which lies on the disk", buffer(end->buffer).name));
      return;
    }
    const Space reached = instruction.lane == Lane::host ? Space::host : Space::device;
    for (const Operand& operand : instruction.operands) {
      const Buffer& of = buffer(operand.buffer);
      if (of.space != reached && of.role != BufferRole::scalars)
        report(id, fmt::format("touches '{}', which lies on the {}; lane {} reaches the {}", of.name,
                               name_of(of.space), name_of(instruction.lane), name_of(reached)));
    }
  }

  void check_message(InstructionId id, const Instruction& message) {
    if (message.peer < 0 || message.peer >= mesh_.pipeline)
      return report(
          id, fmt::format("is to or from pipeline rank {}; the mesh has {}", message.peer, mesh_.pipeline));
    if (message.peer == program_.pipeline_rank) report(id, "is to or from its own rank");
  }

  const Buffer& buffer(BufferId id) const { return program_.buffers[id]; }

  const Program& program_;
  int index_;
  const Mesh& mesh_;
  Findings& findings_;
};

}  // namespace

void check_structure(const Program& program, int index, const Mesh& mesh, Findings& findings) {
  Structure(program, index, mesh, findings).run();
}

}  // namespace tessera
