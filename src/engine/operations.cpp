// What each opcode does on this rank. Uses are the caller's: they never come here.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/gate.h"
#include "kernels/reduce.h"
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
  const bool train = kind == StepKind::train;
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
  return {program().units[static_cast<std::size_t>(instruction.unit)], operation};
}

Executor::Slice Executor::shard_of(FlatId flat) const {
  const std::int64_t numel = layout_.flat(flat).shard_numel;
  return {numel * place_[static_cast<std::size_t>(Axis::shard)], numel};
}

Executor::Slice Executor::slice_of(FlatId flat) const {
  const std::int64_t numel = layout_.flat(flat).slice_numel;
  return {shard_of(flat).offset + numel * place_[static_cast<std::size_t>(Axis::replicate)], numel};
}

Executor::Slice Executor::slice_of(FlatId flat, Part part) const {
  return part == Part::all     ? Slice{0, layout_.flat(flat).padded_numel}
         : part == Part::shard ? shard_of(flat)
                               : slice_of(flat);
}

DType Executor::reduced_type(FlatId flat) const {
  const FlatBuffers& buffers = program().flat_buffers[static_cast<std::size_t>(flat)];
  return buffers.reduced == buffers.accumulator ? DType::fp32 : layout_.flat(flat).dtype;
}

std::byte* Executor::at(BufferId buffer, InstructionId id, std::int64_t offset,
                        std::int64_t element_bytes) const {
  const Part part = program().buffers[static_cast<std::size_t>(buffer)].part;
  return address(buffer, id) + (offset - slice_of(instruction_at(id).flat, part).offset) * element_bytes;
}

kernels::ComputeContext Executor::compute(Lane on) {
  return {.threads = options_.threads_per_rank,
          .workspace = {},
          .device = device_.type(),
          .stream = lane(on).native()};
}

void Executor::all_gather(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const BufferId from = instruction.reads[0];
  const BufferId to = instruction.writes[0];
  const bool gradients = program().buffers[static_cast<std::size_t>(to)].role == BufferRole::accumulator;
  const std::int64_t element = gradients ? 4 : bytes_of(layout_.flat(instruction.flat).dtype);
  const bool of_slices = axis_of(instruction) == Axis::replicate;
  const Slice shard = shard_of(instruction.flat);
  const Slice own = of_slices ? slice_of(instruction.flat) : shard;
  Communicator& channel = channel_of(instruction);
  channel.all_gather(at(from, id, own.offset, element), at(to, id, of_slices ? shard.offset : 0, element),
                     own.numel * element, label(instruction));
}

DType Executor::wire_of(const Program& program, const Instruction& instruction) const {
  const FlatBuffers& buffers = program.flat_buffers[static_cast<std::size_t>(instruction.flat)];
  const bool of_sums = buffers.local_sum >= 0 || axis_of(program, instruction) == Axis::replicate;
  return of_sums ? DType::fp32 : layout_.flat(instruction.flat).dtype;
}

void Executor::reduce_scatter(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const FlatBuffers& buffers = program().flat_buffers[static_cast<std::size_t>(instruction.flat)];
  const Slice shard_slice = shard_of(instruction.flat);
  const bool of_replicas = axis_of(instruction) == Axis::replicate;
  const Slice own = of_replicas ? slice_of(instruction.flat) : shard_slice;
  Communicator& channel = channel_of(instruction);
  const ReduceScatter call = {
      .full = of_replicas ? at(buffers.accumulator, id, shard_slice.offset, 4)
                          : address(buffers.local_sum >= 0 ? buffers.local_sum : buffers.gradient, id),
      .wire = wire_of(program(), instruction),
      .shard = reinterpret_cast<float*>(at(buffers.accumulator, id, own.offset, 4)),
      .shard_numel = own.numel,
      .accumulate = instruction.accumulate,
      .reduction = options_.strategy.reduction,
      .block_squares = instruction.squares ? block_squares() : nullptr};
  if (channel.world() == 1)  // the same sum, by all threads of the rank
    kernels::ordered_chain(compute(id), call.shard_numel, call.wire, std::array{call.full},
                           call.accumulate ? 1.0f : 0.0f, call.shard, call.block_squares);
  else
    channel.reduce_scatter(call, label(instruction));
  if (instruction.squares) add_squares(id);
}

void Executor::accumulate(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const Flat& flat = layout_.flat(instruction.flat);
  const FlatBuffers& buffers = program().flat_buffers[static_cast<std::size_t>(instruction.flat)];
  if (instruction.microbatch < 0) {  // what another pipeline rank has of a flat that both hold
    const Slice slice = slice_of(instruction.flat);
    return kernels::accumulate(compute(id), slice.numel, DType::fp32, address(buffers.tied_sum, id), 1.0f,
                               reinterpret_cast<float*>(at(buffers.accumulator, id, slice.offset, 4)));
  }
  kernels::accumulate(compute(id), flat.padded_numel, flat.dtype, address(buffers.gradient, id),
                      instruction.accumulate ? 1.0f : 0.0f,
                      reinterpret_cast<float*>(address(buffers.local_sum, id)));
}

double* Executor::block_squares() const {
  return reinterpret_cast<double*>(persistent_address(program_, program().square_sums));
}

kernels::UpdateGate* Executor::gate() const {
  static_assert(kDecisionBytes == sizeof(kernels::UpdateGate));
  const BufferId scalars = program().scalars;
  return reinterpret_cast<kernels::UpdateGate*>(
      persistent_address(program_, scalars) +
      slots_bytes(program().buffers[static_cast<std::size_t>(scalars)]));
}

void Executor::square_sum(InstructionId id) {
  const FlatId flat = instruction_at(id).flat;
  const Slice slice = slice_of(flat);
  const BufferId reduced = program().flat_buffers[static_cast<std::size_t>(flat)].reduced;
  const DType type = reduced_type(flat);
  kernels::block_squares(compute(id), slice.numel, type, at(reduced, id, slice.offset, bytes_of(type)),
                         block_squares());
  add_squares(id);
}

// Of this rank's slice, block by block taken before; and of each parameter's part of it.
void Executor::add_squares(InstructionId id) {
  const FlatId flat = instruction_at(id).flat;
  const Slice slice = slice_of(flat);
  const BufferId reduced = program().flat_buffers[static_cast<std::size_t>(flat)].reduced;
  const DType type = reduced_type(flat);
  const auto gradient = [&](std::int64_t offset) { return at(reduced, id, offset, bytes_of(type)); };
  const auto result = [&](int slot) {
    static_assert(sizeof(kernels::SumOfSquares) == 2 * sizeof(double));
    return reinterpret_cast<kernels::SumOfSquares*>(own_scalar(slot));
  };
  kernels::add_block_squares(compute(id), slice.numel, type, gradient(slice.offset), block_squares(),
                             result(square_sum_slot(flat)));
  if (!options_.parameter_norms) return;
  const int flats = static_cast<int>(layout_.flats().size());
  kernels::ComputeContext context = compute(id);
  context.workspace = {block_squares(),
                       program().buffers[static_cast<std::size_t>(program().square_sums)].bytes};
  for (const Piece& piece : layout_.pieces(flat, slice.offset, slice.offset + slice.numel))
    kernels::sum_of_squares(context, piece.numel, type, gradient(piece.offset),
                            result(parameter_square_sum_slot(flats, piece.parameter)));
}

void Executor::message(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const bool sends = instruction.op == Opcode::send;
  const BufferId buffer = (sends ? instruction.reads : instruction.writes)[0];
  std::byte* data = address(buffer, id);
  std::int64_t bytes = program().buffers[static_cast<std::size_t>(buffer)].bytes;
  if (instruction.flat >= 0) {  // a slice of a gradient
    const Slice slice = slice_of(instruction.flat);
    data = at(buffer, id, slice.offset, 4);
    bytes = slice.numel * 4;
  }
  Communicator& channel = channel_of(instruction);
  if (sends)
    channel.send(data, bytes, 1, label(instruction));
  else
    channel.recv(data, bytes, 0, label(instruction));
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
                     .weight_on_device = static_cast<int>(Scalar::weight_on_device),
                     .abandoned = static_cast<int>(Scalar::abandoned),
                     .loss_scale = static_cast<int>(Scalar::loss_scale),
                     .agreed = agreed_scalars(),
                     .square_sums = square_sum_slot(0),
                     .flats = static_cast<int>(layout_.flats().size()),
                     .max_norm = options_.clip.max_norm},
                    gate());
}

// The decision, for the host.
void Executor::decide_step() {
  const Program& running = program();
  const std::int64_t bytes = slots_bytes(running.buffers[static_cast<std::size_t>(running.scalars)]);
  transfer(scalars_.data(), persistent_address(program_, running.scalars), bytes);
  decision_ = decide({.mesh = options_.mesh,
                      .layout = layout_,
                      .ranks = global_ranks_,
                      .program = running,
                      .clip = options_.clip,
                      .parameter_norms = options_.parameter_norms,
                      .scalars = {scalars_.data(), static_cast<std::size_t>(bytes) / sizeof(double)}});
  if (!updates_early_) update_.gradient_scale = decision_.gradient_scale;
}

void Executor::copy(InstructionId id) {
  const Instruction& instruction = instruction_at(id);
  const BufferId from = instruction.reads[0], to = instruction.writes[0];
  const Buffer& source = program().buffers[static_cast<std::size_t>(from)];
  const Buffer& target = program().buffers[static_cast<std::size_t>(to)];
  if (target.space == Space::disk)
    return memory_.disk().write(memory_.disk_offset(program_, to), address(from, id),
                                round_up(source.bytes, kBlockBytes));
  if (source.space == Space::disk)
    return memory_.disk().read(memory_.disk_offset(program_, from), address(to, id),
                               round_up(source.bytes, kBlockBytes));
  Stream& stream = lane(instruction.lane);
  if (instruction.flat < 0) return device_.copy(stream, address(to, id), address(from, id), source.bytes);
  const Flat& flat = layout_.flat(instruction.flat);
  const bool all_of_source = source.bytes <= target.bytes;  // of one type: the smaller part is in the larger
  const Slice moved = slice_of(instruction.flat, all_of_source ? source.part : target.part);
  const std::int64_t element = source.bytes / numel_of(flat, source.part);
  device_.copy(stream, at(to, id, moved.offset, element), at(from, id, moved.offset, element),
               moved.numel * element);
}

void Executor::read_gradient(FlatId flat, std::int64_t offset, std::span<std::byte> to) {
  const BufferId gradient = program().flat_buffers[static_cast<std::size_t>(flat)].update.gradient;
  const Slice held = slice_of(flat, program().buffers[static_cast<std::size_t>(gradient)].part);
  transfer(to.data(), address(gradient, cursor_) + (offset - held.offset) * bytes_of(reduced_type(flat)),
           static_cast<std::int64_t>(to.size()));
}

void Executor::update(InstructionId id) {
  const FlatId flat_id = instruction_at(id).flat;
  const Flat& flat = layout_.flat(flat_id);
  const UpdateBuffers& buffers = program().flat_buffers[static_cast<std::size_t>(flat_id)].update;
  const DType gradient_type = reduced_type(flat_id);
  const bool own_master = buffers.master != buffers.parameter;
  const bool on_host = instruction_at(id).lane == Lane::host;
  const bool carried = instruction_at(id).carried;
  const UpdateTerms& terms = carried ? carried_ : update_;
  const auto moment = [&](std::size_t which, std::int64_t offset) -> void* {
    const BufferId buffer = buffers.moments[which];
    return buffer < 0 ? nullptr : at(buffer, id, offset, bytes_of(options_.optimizer.moment_type));
  };
  // With replicated states every rank updates everything.
  const bool whole = program().placements.optimizer_state == Placement::replicated;
  const Slice mine = program().state_over_replicas ? slice_of(flat_id)
                     : whole                       ? Slice{0, flat.padded_numel}
                                                   : shard_of(flat_id);
  std::vector<UpdateRun>& runs = update_runs_[static_cast<std::size_t>(flat_id)];
  runs.clear();
  std::int64_t begin = 0, end = 0;  // of all of them; between two is padding, whose zeros stay zeros
  for (const GroupRun& run : group_runs_[static_cast<std::size_t>(flat_id)]) {
    const std::int64_t first = std::max(run.offset, mine.offset);
    const std::int64_t last = std::min(run.offset + run.numel, mine.offset + mine.numel);
    if (first >= last) continue;
    if (runs.empty())
      begin = first;
    else
      runs.back().numel += first - end;
    runs.push_back({.numel = last - first, .group = run.group});
    end = last;
  }
  if (runs.empty()) return;
  options_.optimizer.update(
      {.numel = end - begin,
       .gradient_type = gradient_type,
       .gradient = at(buffers.gradient, id, begin, bytes_of(gradient_type)),
       .master = reinterpret_cast<float*>(at(buffers.master, id, begin, bytes_of(DType::fp32))),
       .moments = {moment(0, begin), moment(1, begin)},
       .parameter_type = flat.dtype,
       .parameter = own_master ? at(buffers.parameter, id, begin, bytes_of(flat.dtype)) : nullptr,
       .runs = runs,
       .learning_rate = terms.learning_rate,
       .step = terms.step,
       .gradient_scale = terms.gradient_scale,
       .rounding_key = rounding_keys_[static_cast<std::size_t>(flat_id)],
       .first = begin,
       .gate = !carried && gate_set_ ? gate() : nullptr,
       .threads = options_.threads_per_rank,
       .device = on_host ? DeviceType::cpu : device_.type(),
       .stream = on_host ? nullptr : lane(Lane::compute).native()});
}

}  // namespace tessera
