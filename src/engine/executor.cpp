#include "src/engine/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "kernels/elementwise.h"
#include "kernels/gate.h"
#include "src/device/wait.h"
#include "src/program/opcodes.h"

namespace tessera {
namespace {

constexpr std::int64_t kZeroedTogetherBytes = 1 << 20;  // less than this one thread zeroes as fast

// [program] which one does between steps what a step of it leaves. They stand behind all others, in the order
// of the programs that they are for.
IdVector<int> finish_programs(const IdVector<Program>& programs) {
  IdVector<int> finish_of(programs.size(), -1);
  for (std::size_t finish = 0; finish < programs.size(); ++finish) {
    if (programs[finish].kind != StepKind::finish) continue;
    for (std::size_t of = 0; of < programs.size(); ++of)
      if (finish_of[of] < 0 && programs[of].kind == StepKind::train &&
          programs[of].microbatches == programs[finish].microbatches) {
        finish_of[of] = static_cast<int>(finish);
        break;
      }
  }
  return finish_of;
}

}  // namespace

Executor::Executor(const Communicator& world, std::vector<int> global_ranks, Device& device,
                   const Layout& layout, const IdVector<Program>& programs, const MemoryPlan& plan,
                   const EngineOptions& options)
    : world_(world),
      global_ranks_(std::move(global_ranks)),
      device_(device),
      layout_(layout),
      programs_(programs),
      options_(options),
      several_kinds_(std::ranges::any_of(programs,
                                         [&](const Program& program) {
                                           return program.kind != StepKind::finish &&
                                                  program.kind != programs.front().kind;
                                         })),
      blocks_(device.type() == DeviceType::cuda &&
              options.optimizer.groups.size() <= static_cast<std::size_t>(kernels::kMostStepGroups)),
      rank_(world.rank()),
      place_(options.mesh.coordinates(rank_)),
      memory_(device, programs, plan,
              {.poison = options.debug.poison,
               .shared = world.wants_shared_arena(),
               .source = world.arena_source(),
               .address_space_before = options.address_space_before,
               .disk_directory = options.disk_directory}),
      peak_program_(plan.space(Space::device).peak_program),
      peak_instruction_(plan.space(Space::device).peak_instruction),
      trace_(device, programs, options.mesh) {
  graphs_.resize(programs.size());
  first_places_ = first_places(layout);
  if (device.type() == DeviceType::cuda) trace_.prepare();  // with what set-up takes, and nothing later
  for (FlatId flat = 0; flat < layout.flats().count(); ++flat) {
    gaps_.push_back(layout.gaps(flat, 0, layout.flat(flat).padded_numel));
    const Flat& of = layout.flat(flat);
    rounding_keys_.push_back(rounding_key(layout.units()[of.unit].name, of, place_[Axis::tensor]));
  }
  finish_of_ = finish_programs(programs);
  // A rank without peers has nothing to hide behind its compute: its threads then work on one instruction at
  // a time instead of taking each other's cores.
  const bool alone = world.world() == 1;
  std::size_t instructions = 0;
  for (const Program& program : programs) {
    open_channels(world, program);
    for (const Instruction& instruction : program.instructions) {
      std::unique_ptr<Stream>& lane = lanes_[instruction.lane];
      // Messages keep lanes of their own: one after the other, ranks that send to each other would both wait.
      if (lane) continue;
      const bool of_host = instruction.lane == Lane::host || instruction.lane == Lane::io;
      const StreamOptions stream = {
          .name = std::string(name_of(instruction.lane)),
          .on_caller = instruction.lane == Lane::compute ||
                       (alone && joins_compute_alone(instruction.lane)) ||
                       (options.debug.strict_order && !is_of_messages(instruction.lane)),
          .cpus = {},
          .urgent = instruction.lane != Lane::compute};
      lane = of_host ? device.make_host_stream(stream) : device.make_stream(stream);
    }
    instructions = std::max(instructions, program.instructions.size());
    scalars_.resize(std::max(scalars_.size(), static_cast<std::size_t>(program.scalars_numel) *
                                                  static_cast<std::size_t>(world.world())));
  }
  uploads_.emplace(device, lane(Lane::compute));
  bind_channels();
  if (options.splits_layers) open_tensor_group();
  if (options.open_libraries) options.open_libraries(stream());
  events_.resize(instructions);
  name_ranges();
}

void Executor::take_memory() {
  memory_.take();
  for (const Program& program : programs_) {
    operand_places_.emplace_back(programs_, static_cast<int>(operand_places_.size()), layout_, place_,
                                 memory_);
    updates_.push_back(updates_of(program, layout_, operand_places_.back(), place_[Axis::tensor],
                                  options_.optimizer.moment_type));
  }
  registration_ = world_.register_arena(memory_.arena());
}

void Executor::name_ranges() {
  if (!device::profiled()) return;
  for (const Program& program : programs_) {
    IdVector<const void*>& names = ranges_.emplace_back();
    for (std::size_t id = 0; id < program.instructions.size(); ++id)
      names.push_back(device::range_name(describe(program, static_cast<InstructionId>(id))));
  }
}

// Where a step failed, an operation of one lane may still wait for an event of another: none is left when the
// first lane goes. The failure that ended the step ends such waits.
Executor::~Executor() {
  drop_capture();
  const auto limit = device::Clock::now() + 10 * options_.waits.deadline;
  for (const std::unique_ptr<Stream>& lane : lanes_) {
    if (!lane) continue;
    const Event last = lane->record();
    while (!lane->done(last) && device::Clock::now() < limit)
      device::pause_for(std::chrono::microseconds(100));
  }
}

void Executor::start(int program, bool continues) {
  program_ = program;
  cursor_ = 0;
  decision_ = {};
  now_ = terms_ = {};
  gate_set_ = false;
  previous_.apply = carried_from_ >= 0;
  carried_from_ = -1;
  memory_.begin_step(program);
  // Behind the host's scalars is what add_loss() adds to, then sums of squares, of which an evaluation has
  // none.
  zero(own_scalar(0), std::int64_t{8} * (continues ? kHostScalars : this->program().scalars_numel));
  trace_.start(this->program(), lane(Lane::compute));
  uploaded_before_ = uploads_->captured_bytes();
}

std::byte* Executor::address(BufferId buffer, InstructionId at) const {
  const int lifetime = lifetime_at(program().buffers[buffer], at);
  return lifetime < 0 ? nullptr : memory_.address(program_, buffer, lifetime);
}

double* Executor::own_scalar(int slot) const {
  auto* all = reinterpret_cast<double*>(persistent_address(program_, program().scalars));
  return all + std::int64_t{rank_} * program().scalars_numel + slot;
}

void Executor::add_loss(const LossTotal* total) {
  kernels::add_loss(compute(Lane::compute), total, reinterpret_cast<LossSum*>(own_scalar(kLossSlot)));
}

void Executor::zero(void* memory, std::int64_t bytes) {
  // Much of it by all threads of the rank: memory that is new then also lies where they will use it.
  if (bytes >= kZeroedTogetherBytes && bytes % 4 == 0)
    kernels::fill(compute(Lane::compute), DType::fp32, bytes / 4, 0.0f, memory);
  else
    device_.fill(lane(Lane::compute), memory, 0, bytes);
}

void Executor::transfer(void* to, const void* from, std::int64_t bytes) {
  Stream& stream = lane(Lane::compute);
  // What comes before is waited for here: in a copy to memory that is not pinned a GPU's driver would wait
  // for it, without a deadline and deaf to failures.
  stream.synchronize();
  device_.copy(stream, to, from, bytes);
  stream.synchronize();
}

void Executor::upload(void* to, const void* from, std::int64_t bytes) {
  uploads_->copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
}

InstructionId Executor::advance() {
  for (;; ++cursor_) {
    const Instruction& next = instruction_at(cursor_);
    if (next.op == Opcode::use || next.op == Opcode::reduce_scalars) return cursor_;
    issue(cursor_);
  }
}

void Executor::wait_for(InstructionId id, Stream& stream) {
  const Instruction& instruction = instruction_at(id);
  if (instruction.waits.empty()) return;
  std::optional<Waits> waits;  // other lanes' streams only note for what they will wait
  if (instruction.lane == Lane::compute) {
    trace_.waits(id, stream);
    waits.emplace(*this);
  }
  for (InstructionId wait : instruction.waits) stream.wait(events_[wait]);
}

void Executor::give_terms(const UpdateTerms& terms) {
  terms_ = {.known = true, .apply = true, .terms = terms};
  upload_update(decision_buffer(BufferRole::terms), terms, false);
}

// Whether the device can follow the decision where the host does not know it: an update asks it there, and a
// gather in place brings what is the same as before where updates were skipped.
bool Executor::device_decides(const Instruction& instruction) const {
  if (instruction.op == Opcode::all_gather)
    return instruction.buffer(Role::from) == instruction.buffer(Role::to);
  return instruction.op == Opcode::update && instruction.lane == Lane::compute;
}

const Executor::Decided& Executor::decided(const Instruction& instruction) const {
  switch (program().buffers[instruction.when].role) {
    case BufferRole::previous_decision:
      return previous_;
    case BufferRole::terms:
      return terms_;
    default:
      return now_;
  }
}

bool Executor::runs(const Instruction& instruction) {
  if (instruction.when < 0) return true;
  const Decided& decision = decided(instruction);
  if (&decision == &terms_ && !terms_.known)
    throw Error(fmt::format("an update waits for no decision, but the step began without terms: {}",
                            name_of(instruction.op)));
  if (&decision == &now_ && !now_.known) {
    if (device_decides(instruction)) {
      if (!gate_set_) set_gate();
      return true;
    }
    decide_step();
  }
  return decision.apply;
}

// What does nothing keeps its place: others may be in order only by way of it.
void Executor::issue(InstructionId id) {
  constexpr std::uint64_t kIdle = std::uint64_t{1} << 63;
  const Instruction& instruction = instruction_at(id);
  Stream& stream = *lanes_[instruction.lane];
  const bool idle = !runs(instruction);
  wait_for(id, stream);
  stream.run({&Executor::run_task, this, static_cast<std::uint64_t>(id) | (idle ? kIdle : 0)});
  events_[id] = stream.record();
}

void Executor::open_use(InstructionId use) {
  wait_for(use, lane(Lane::compute));
  memory_.before(program_, use, lane(Lane::compute));
  trace_.begin(use, lane(Lane::compute));
  use_range_.emplace(range_of(use));
}

void Executor::close_use(InstructionId use) {
  use_range_.reset();
  trace_.end(use, lane(Lane::compute));
  observe(use);
  memory_.after(program_, use, lane(Lane::compute));
  events_[use] = lane(Lane::compute).record();
  ++cursor_;
}

bool Executor::finish(const ScalarHeader& header) {
  give_header(header);
  decides_at_ = cursor_;
  {
    const Waits waits(*this);
    issue(cursor_++);
  }
  const InstructionId count = program().instructions.count();
  for (; cursor_ < count; ++cursor_) issue(cursor_);
  StepGraph& graph = graphs_[program_];
  if (captures_) {
    end_capture();
    if (!graph.work) return false;
    launch(graph);
  } else {
    ++graph.eager_steps;
    graph.upload_bytes = uploads_->captured_bytes() - uploaded_before_;
    trace_.issued(lane(Lane::compute));
    synchronize_lanes();
    if (!now_.known) decide_step();
  }
  end_step();
  return true;
}

void Executor::end_step() {
  if (instruction_at(decides_at_).find(Role::next_decision) != nullptr) {  // some updates are the next step's
    previous_ = now_;
    carried_from_ = now_.apply ? program_ : -1;
  }
  trace_.finish(program().instructions.count());
  program_ = -1;
}

void Executor::finish_carried() {
  program_ = finish_of_[carried_from_];
  previous_.apply = true;
  memory_.begin_step(program_);
  for (InstructionId id = 0; id < program().instructions.count(); ++id) issue(id);
  synchronize_lanes();
  drop_carried();
  program_ = -1;
}

void Executor::drop_carried() {
  carried_from_ = -1;
  previous_.apply = false;
}

void Executor::synchronize_lanes() {
  const Waits waits(*this);
  // A GPU's lanes come first: threads of the host, the last ones, do not see it fail.
  for (const std::unique_ptr<Stream>& lane : lanes_)
    if (lane) lane->synchronize();
}

void Executor::run_task(void* self, std::uint64_t task) {
  static_cast<Executor*>(self)->run(static_cast<InstructionId>(task), task >> 63 != 0);
}

void Executor::run(InstructionId id, bool idle) {
  const device::Range range(range_of(id));
  Stream& stream = lane(instruction_at(id).lane);
  memory_.before(program_, id, stream);
  trace_.begin(id, stream);
  if (!idle) perform(id);
  if (options_.debug.delay_us && !idle) {
    const double us = options_.debug.delay_us(program(), instruction_at(id));
    device::sleep_exactly(std::chrono::nanoseconds(static_cast<std::int64_t>(us * 1e3)));
  }
  trace_.end(id, stream);
  observe(id);
  memory_.after(program_, id, stream);
}

}  // namespace tessera
