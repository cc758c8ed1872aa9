// What each opcode does on this rank. Uses are the caller's: they never come here.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/gate.h"
#include "kernels/reduce.h"
#include "optim/update.h"
#include "src/engine/executor.h"

namespace tessera {

void Executor::perform(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  switch (instruction.op) {
    case Opcode::use:
      break;
    case Opcode::all_gather:
      return all_gather(id);
    case Opcode::reduce_scatter:
      return reduce_scatter(id);
    case Opcode::accumulate:
      return accumulate(id);
    case Opcode::square_sum:
      return square_sum(id);
    case Opcode::zero:
      return zero(id);
    case Opcode::send:
    case Opcode::receive:
      return message(id);
    case Opcode::reduce_scalars:
      return reduce_scalars(instruction);
    case Opcode::update:
      return update(id);
    case Opcode::copy:
      return copy(id);
  }
  throw Error("a use reached the executor's lanes");
}

namespace {

// Where ranks run different programs their calls may not even meet; then both are to say which.
const char* operation_in(StepKind kind, Opcode opcode) {
  const bool train = kind != StepKind::evaluate;
  switch (opcode) {
    case Opcode::all_gather:
      return train ? "all_gather (train)" : "all_gather (evaluate)";
    case Opcode::reduce_scatter:
      return train ? "reduce_scatter (train)" : "reduce_scatter (evaluate)";
    case Opcode::reduce_scalars:
      return train ? "all_gather (train)" : "all_gather (evaluate)";
    case Opcode::send:
      return train ? "send (train)" : "send (evaluate)";
    case Opcode::receive:
      return train ? "recv (train)" : "recv (evaluate)";
    default:
      return nullptr;
  }
}

}  // namespace

CallLabel Executor::label(const Instruction& instruction) const {
  const char* const operation = several_kinds_ ? operation_in(program().kind, instruction.op) : nullptr;
  if (instruction.unit < 0) return {"the step's scalars", operation};
  return {program().units[instruction.unit].name, operation};
}

kernels::ComputeContext Executor::compute(Lane on) {
  return {.threads = options_.threads_per_rank,
          .workspace = {},
          .device = device_.type(),
          .stream = lane(on).native()};
}

void Executor::all_gather(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const OperandPlace& part = place_of(id, instruction.operand(Role::from));
  const OperandPlace& whole = place_of(id, instruction.operand(Role::to));
  channel_of(instruction).all_gather(part.address, whole.address, part.bytes, label(instruction));
}

void Executor::reduce_scatter(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const Operand* from = instruction.find(Role::from);
  const Operand& to = instruction.operand(Role::to);
  Communicator& channel = channel_of(instruction);
  const bool gives = from != nullptr && instruction.contributors.contains(channel.rank());
  const ReduceScatter call = {
      .full = gives ? place_of(id, *from).address : nullptr,
      .wire = instruction.wire_type(),
      .shard = reinterpret_cast<float*>(place_of(id, to).address),
      .shard_numel = place_of(id, to).bytes / bytes_of(to.type),
      .accumulate = to.access == Access::add,
      .contributors = instruction.contributors,
      .reduction = options_.strategy.reduction,
      .balanced = instruction.lane == Lane::exchange && options_.strategy.reduction == Reduction::exact,
      .squares = squares_of(id, to)};
  if (channel.world() == 1)  // the same sum, by all threads of the rank
    kernels::ordered_chain(compute(id), call.shard_numel, call.wire, std::array{call.full},
                           call.accumulate ? 1.0f : 0.0f, call.shard, call.squares);
  else
    channel.reduce_scatter(call, label(instruction));
  if (call.squares.sum != nullptr) add_parameter_squares(id, to);
}

void Executor::accumulate(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const Operand& from = instruction.operand(Role::from);
  const Operand& to = instruction.operand(Role::to);
  const OperandPlace& added = place_of(id, from);
  kernels::accumulate(compute(id), added.range.numel(), from.type, added.address,
                      to.access == Access::add ? 1.0f : 0.0f,
                      reinterpret_cast<float*>(place_of(id, to).address));
}

void Executor::zero(InstructionId id) {
  for (const Operand& operand : instruction_at(id).operands) {
    const OperandPlace& place = place_of(id, operand);
    if (operand.region.kind != Region::Kind::gaps) {
      zero(place.address, place.bytes);
      continue;
    }
    const std::int64_t element = bytes_of(operand.type);
    for (const Piece& gap : gaps_[program().buffers[operand.buffer].flat])
      zero(place.address + gap.offset * element, gap.numel * element);
  }
}

kernels::UpdateGate* Executor::gate() const {
  static_assert(kDecisionBytes == sizeof(kernels::StepBlock));
  return reinterpret_cast<kernels::UpdateGate*>(
      persistent_address(program_, instruction_at(decides_at_).operand(Role::decision).buffer));
}

void Executor::square_sum(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const Operand& from = instruction.operand(Role::from);
  const OperandPlace& summed = place_of(id, from);
  kernels::sum_of_squares(compute(id), summed.range.numel(), from.type, summed.address, squares_of(id, from));
  add_parameter_squares(id, from);
}

// Where the squares of the reduced gradient go; nowhere if the instruction takes none.
Squares Executor::squares_of(InstructionId id, const Operand& reduced) const {
  static_assert(kAlignmentBytes / bytes_of(DType::fp32) % kSquareBlock == 0);
  const Operand* const sum = instruction_at(id).find(Role::squares);
  if (sum == nullptr) return {};
  const FlatId flat = program().buffers[reduced.buffer].flat;
  return {square_sum_of(sum->region.parameter), first_places_[flat] + place_of(id, reduced).range.begin};
}

SquareSum* Executor::square_sum_of(ParameterId parameter) const {
  return reinterpret_cast<SquareSum*>(own_scalar(square_sum_slot(parameter)));
}

// Those of each parameter's part, where they are asked for.
void Executor::add_parameter_squares(InstructionId id, const Operand& reduced) {
  if (!options_.parameter_norms) return;
  const OperandPlace& place = place_of(id, reduced);
  const ElementRange part = place.range;
  const Squares all = squares_of(id, reduced);
  for (const Piece& piece : layout_.pieces(program().buffers[reduced.buffer].flat, part.begin, part.end)) {
    const std::int64_t offset = piece.offset - part.begin;
    kernels::sum_of_squares(compute(id), piece.numel, reduced.type,
                            place.address + offset * bytes_of(reduced.type),
                            {square_sum_of(piece.parameter), all.first + offset});
  }
}

void Executor::message(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const OperandPlace& moved = place_of(id, instruction.operands[0]);
  Communicator& channel = channel_of(instruction);
  if (instruction.op == Opcode::send)
    channel.send(moved.address, moved.bytes, 1, label(instruction));
  else
    channel.recv(moved.address, moved.bytes, 0, label(instruction));
}

void Executor::reduce_scalars(const Instruction& instruction) {
  const Program& running = program();
  Communicator& channel = channel_of(instruction);
  std::byte* gathered = persistent_address(program_, running.scalars);
  channel.all_gather(own_scalar(0), gathered, std::int64_t{8} * running.scalars_numel, label(instruction));
}

// The decision, where the device's updates read it.
void Executor::set_gate() {
  const Program& running = program();
  kernels::set_gate(compute(Lane::compute),
                    {.scalars = reinterpret_cast<double*>(persistent_address(program_, running.scalars)),
                     .ranks = world_.world(),
                     .numel = running.scalars_numel,
                     .weight = static_cast<int>(Scalar::weight),
                     .counted = kLossSlot + kLossSlots - 1,
                     .abandoned = static_cast<int>(Scalar::abandoned),
                     .loss_scale = static_cast<int>(Scalar::loss_scale),
                     .agreed = agreed_scalars(),
                     .squares = square_sum_slot(kAllParameters),
                     .max_norm = options_.clip.max_norm},
                    gate());
  gate_set_ = true;
}

// The decision, for the host.
void Executor::decide_step() {
  const Program& running = program();
  transfer(scalars_.data(), persistent_address(program_, running.scalars),
           running.buffers[running.scalars].bytes);
  decide_by_scalars();
}

void Executor::decide_by_scalars() {
  const Program& running = program();
  const auto bytes = static_cast<std::size_t>(running.buffers[running.scalars].bytes);
  decision_ = decide({.layout = layout_,
                      .ranks = global_ranks_,
                      .program = running,
                      .clip = options_.clip,
                      .parameter_norms = options_.parameter_norms,
                      .scalars = {scalars_.data(), bytes / sizeof(double)}});
  now_.known = true;
  now_.apply = decision_.result.reason == SkipReason::none;
  now_.terms.gradient_scale = decision_.gradient_scale;
}

void Executor::copy(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const Operand& from = instruction.operand(Role::from);
  const Operand& to = instruction.operand(Role::to);
  const OperandPlace &source = place_of(id, from), &target = place_of(id, to);
  const auto on_disk = [&](const Operand& operand) {
    return program().buffers[operand.buffer].space == Space::disk;
  };
  // The disk moves whole blocks, which its buffers, and those beside it, have room for.
  if (on_disk(to))
    return memory_.disk().write(memory_.disk_offset(program_, to.buffer), source.address,
                                round_up(source.bytes, kBlockBytes));
  if (on_disk(from))
    return memory_.disk().read(memory_.disk_offset(program_, from.buffer), target.address,
                               round_up(target.bytes, kBlockBytes));
  device_.copy(lane(instruction.lane), target.address, source.address, source.bytes);
}

DType Executor::reduced_type(FlatId flat) const {
  return instruction_at(update_of(flat)).operand(Role::gradient).type;
}

void Executor::read_gradient(FlatId flat, std::int64_t offset, std::span<std::byte> to) {
  const BufferId gradient = instruction_at(update_of(flat)).operand(Role::gradient).buffer;
  const std::int64_t held =
      tessera::range_of(layout_.flat(flat), program().buffers[gradient].spread, place_).begin;
  transfer(to.data(), address(gradient, cursor_) + (offset - held) * bytes_of(reduced_type(flat)),
           static_cast<std::int64_t>(to.size()));
}

void Executor::update(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const Operand& gradient = instruction.operand(Role::gradient);
  const FlatId flat = program().buffers[gradient.buffer].flat;
  const UpdateRuns& part = updates_[program_][flat];
  if (part.runs.empty()) return;
  const std::int64_t skipped = part.begin - place_of(id, gradient).range.begin;  // in front of the first run
  const bool on_host = instruction.lane == Lane::host;
  const auto from_begin = [&](Role role) -> std::byte* {
    const Operand* operand = instruction.find(role);
    if (operand == nullptr) return nullptr;
    return place_of(id, *operand).address + skipped * bytes_of(operand->type);
  };
  const Decided& decision = decided(instruction);
  // On a GPU terms that were known before lie where the gate of a step's own decision would.
  kernels::StepBlock* const block = on_host ? nullptr : block_of(instruction.when);
  const kernels::UpdateGate* read_gate = nullptr;
  if (&decision != &now_)
    read_gate = block == nullptr ? nullptr : &block->gate;
  else if (!on_host && gate_set_)
    read_gate = gate();
  tessera::update(options_.optimizer, {.numel = part.numel,
                                       .gradient_type = gradient.type,
                                       .gradient = from_begin(Role::gradient),
                                       .master = reinterpret_cast<float*>(from_begin(Role::master)),
                                       .moments = {from_begin(Role::moment1), from_begin(Role::moment2)},
                                       .parameter_type = layout_.flat(flat).dtype,
                                       .parameter = from_begin(Role::parameter),
                                       .runs = part.runs,
                                       .learning_rate = decision.terms.learning_rate,
                                       .step = decision.terms.step,
                                       .gradient_scale = decision.terms.gradient_scale,
                                       .rounding_key = rounding_keys_[flat],
                                       .first = part.begin,
                                       .gate = read_gate,
                                       .block = block,
                                       .threads = options_.threads_per_rank,
                                       .device = on_host ? DeviceType::cpu : device_.type(),
                                       .stream = on_host ? nullptr : lane(Lane::compute).native()});
}

}  // namespace tessera
