#include "src/engine/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <thread>

#include "kernels/reduce.h"

namespace tessera {
namespace {

bool is_collective(const Instruction& instruction) { return instruction.channel >= 0; }

std::vector<GroupRun> group_runs(const Layout& layout, FlatId flat) {
  std::vector<GroupRun> runs;
  for (ParameterId id : layout.flat(flat).parameters) {
    const Place& place = layout.place(id);
    const int group = layout.parameter(id).group;
    // Padding between two parameters of a group is zero and stays zero under any optimizer: one run.
    if (!runs.empty() && runs.back().group == group)
      runs.back().numel = place.offset + place.numel - runs.back().offset;
    else
      runs.push_back({place.offset, place.numel, group});
  }
  return runs;
}

}  // namespace

Executor::Executor(const Communicator& world, Device& device, const Layout& layout,
                   const std::vector<Program>& programs, const MemoryPlan& plan, const EngineOptions& options)
    : device_(device),
      layout_(layout),
      programs_(programs),
      options_(options),
      rank_(world.rank()),
      memory_(device, programs, plan, {.poison = options.poison, .shared = world.wants_shared_arena()}),
      registration_(Communicator(world).register_arena(memory_.arena())),
      peak_program_(plan.space(Space::device).peak_program),
      peak_instruction_(plan.space(Space::device).peak_instruction) {
  std::int64_t square_bytes = 0;
  for (FlatId flat = 0; flat < static_cast<FlatId>(layout.flats().size()); ++flat) {
    gaps_.push_back(layout.gaps(flat, 0, layout.flat(flat).padded_numel));
    square_bytes =
        std::max(square_bytes, kernels::sum_of_squares_workspace_bytes(layout.flat(flat).shard_numel));
    group_runs_.push_back(group_runs(layout, flat));
  }
  square_workspace_ = device.make_arena(square_bytes);
  // A rank without peers has nothing to hide behind its compute: its threads then work on one instruction at
  // a time instead of taking each other's cores.
  const bool on_caller = options.strict_order || world.world() == 1;
  // Programs never run at the same time, so one communicator per axis and lane serves them all.
  std::map<std::pair<int, int>, Communicator> made;
  std::size_t instructions = 0;
  for (const Program& program : programs) {
    std::vector<Communicator>& channels = channels_.emplace_back();
    for (const Channel& channel : program.channels) {
      const std::pair key{static_cast<int>(channel.axis), static_cast<int>(channel.lane)};
      if (!made.contains(key))
        made[key] =
            world.subgroup(options.mesh.group(channel.axis, rank_), std::string(name_of(channel.lane)));
      channels.push_back(made[key]);
    }
    for (const Instruction& instruction : program.instructions) {
      std::unique_ptr<Stream>& lane = lanes_[static_cast<std::size_t>(instruction.lane)];
      if (!lane)
        lane = device.make_stream({.name = std::string(name_of(instruction.lane)),
                                   .on_caller = instruction.lane == Lane::compute || on_caller,
                                   .cpus = {}});
    }
    instructions = std::max(instructions, program.instructions.size());
    scalars_.resize(
        std::max(scalars_.size(), static_cast<std::size_t>(program.scalars_numel * world.world())));
  }
  events_.resize(instructions);
  spans_.reserve(instructions);
}

// Where a step failed, an operation of one lane may still wait for an event of another: none is left when the
// first lane goes. The failure that ended the step ends such waits.
Executor::~Executor() {
  const auto limit = std::chrono::steady_clock::now() + 10 * options_.deadline;
  for (const std::unique_ptr<Stream>& lane : lanes_) {
    if (!lane) continue;
    const Event last = lane->record();
    while (!lane->done(last) && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Executor::start(int program) {
  program_ = program;
  cursor_ = 0;
  decision_ = {};
  memory_.begin_step(program);
  zero(own_scalar(0), std::int64_t{8} * this->program().scalars_numel);
  tracing_ = tracing_next_;
  spans_.clear();
  if (!tracing_) return;
  spans_.resize(this->program().instructions.size());
  exposed_us_ = 0;
  epoch_ = std::chrono::steady_clock::now();
}

std::byte* Executor::address(BufferId buffer, InstructionId at) const {
  const int lifetime = lifetime_at(program().buffers[static_cast<std::size_t>(buffer)], at);
  return lifetime < 0 ? nullptr : memory_.address(program_, buffer, lifetime);
}

double* Executor::own_scalar(int slot) const {
  auto* all = reinterpret_cast<double*>(persistent_address(program_, program().scalars));
  return all + std::int64_t{rank_} * program().scalars_numel + slot;
}

void Executor::zero(void* memory, std::int64_t bytes) { device_.fill(lane(Lane::compute), memory, 0, bytes); }

void Executor::transfer(void* to, const void* from, std::int64_t bytes) {
  device_.copy(lane(Lane::compute), to, from, bytes);
  lane(Lane::compute).synchronize();
}

InstructionId Executor::advance() {
  for (;; ++cursor_) {
    const Instruction& next = instruction_at(cursor_);
    if (next.op == Opcode::use || next.op == Opcode::reduce_scalars) return cursor_;
    issue(cursor_);
  }
}

void Executor::wait_for(const Instruction& instruction, Stream& stream) {
  if (instruction.waits.empty()) return;
  const bool timed = tracing_ && instruction.lane == Lane::compute;
  const double begin = timed ? now_us() : 0.0;
  for (InstructionId wait : instruction.waits) stream.wait(events_[static_cast<std::size_t>(wait)]);
  if (timed) exposed_us_ += now_us() - begin;
}

void Executor::issue(InstructionId id) {
  Stream& stream = *lanes_[static_cast<std::size_t>(instruction_at(id).lane)];
  wait_for(instruction_at(id), stream);
  stream.run({&Executor::run_task, this, static_cast<std::uint64_t>(id)});
  events_[static_cast<std::size_t>(id)] = stream.record();
}

void Executor::open_use(InstructionId use) {
  wait_for(instruction_at(use), *lanes_[static_cast<std::size_t>(Lane::compute)]);
  memory_.before(program_, use);
  if (tracing_) spans_[static_cast<std::size_t>(use)] = {use, Lane::compute, now_us(), 0};
}

void Executor::close_use(InstructionId use) {
  if (tracing_) spans_[static_cast<std::size_t>(use)].end_us = now_us();
  observe(use);
  memory_.after(program_, use);
  events_[static_cast<std::size_t>(use)] = lanes_[static_cast<std::size_t>(Lane::compute)]->record();
  ++cursor_;
}

void Executor::finish(const ScalarHeader& header) {
  learning_rate_ = header[static_cast<std::size_t>(Scalar::learning_rate)];
  device_.copy(lane(Lane::compute), own_scalar(0), header.data(), sizeof header);
  issue(cursor_++);
  decide_step();
  const auto count = static_cast<InstructionId>(program().instructions.size());
  for (; cursor_ < count; ++cursor_) issue(cursor_);
  const double begin = tracing_ ? now_us() : 0.0;
  for (const std::unique_ptr<Stream>& lane : lanes_)
    if (lane) lane->synchronize();
  if (tracing_) {
    exposed_us_ += now_us() - begin;
    finish_trace();
  }
  program_ = -1;
}

void Executor::run_task(void* self, std::uint64_t id) {
  static_cast<Executor*>(self)->run(static_cast<InstructionId>(id));
}

void Executor::run(InstructionId id) {
  memory_.before(program_, id);
  const double begin = tracing_ ? now_us() : 0.0;
  perform(id);
  if (tracing_) spans_[static_cast<std::size_t>(id)] = {id, instruction_at(id).lane, begin, now_us()};
  observe(id);
  memory_.after(program_, id);
}

double Executor::now_us() const {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - epoch_).count();
}

void Executor::finish_trace() {
  timing_ = {.total_us = now_us(), .exposed_us = exposed_us_};
  for (const Span& span : spans_) {
    const Instruction& spanned = instruction_at(span.instruction);
    if (is_collective(spanned) && spanned.lane != Lane::compute)
      timing_.communication_us += span.end_us - span.start_us;
  }
}

}  // namespace tessera
