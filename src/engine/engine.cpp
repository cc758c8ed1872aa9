#include "tessera/engine.h"
#include "tessera/budget.h"
#include "tessera/machine.h"
#include "tessera/prove.h"
#include "tessera/simulate.h"
#include "tessera/step_spec.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <limits>

#include "kernels/gate_math.h"
#include "src/engine/budget_check.h"
#include "src/engine/device_room.h"
#include "src/engine/disk_room.h"
#include "src/engine/engine_impl.h"
#include "src/engine/equal_engines.h"
#include "src/engine/memory_room.h"

namespace tessera {
namespace {

// Addresses between which the host and the device copy.
void check_copy(const char* call, const void* to, const void* from, std::int64_t bytes) {
  if (bytes < 0) throw UsageError(fmt::format("{}: bytes is {}; it must be 0 or more", call, bytes));
  if (bytes > 0 && (to == nullptr || from == nullptr))
    throw UsageError(fmt::format("{}: {} is null; it must be an address of {} bytes", call,
                                 to == nullptr ? "to" : "from", bytes));
}

}  // namespace

Engine::Impl::Impl(Communicator world_in, std::vector<UnitSpec> units, EngineOptions options_in)
    : options(checked_options(std::move(options_in), world_in, units)),
      world(std::move(world_in)),
      layout(std::move(units), options.mesh.shard, options.mesh.replicate, options.mesh.tensor),
      coordinates(options.mesh.coordinates(world.rank())),
      partition(layout.units().count(), options.mesh.pipeline, options.strategy.pipeline),
      spreads(spreads_of(options.strategy, options.mesh)),
      scaler(options.loss_scaling.value_or(LossScaleOptions{})) {
  const std::vector<StepSpec> specs = step_specs(options);
  IdVector<PlannedPrograms> of_ranks = plan_pipeline(layout, options.mesh, specs);
  const std::string figures = figures_of(layout, options);
  hash = XXH3_64bits(figures.data(), figures.size());
  for (const PlannedPrograms& planned : of_ranks)
    for (const Program& program : planned.programs) hash = hash * 0x9E3779B97F4A7C15ULL + program.hash();
  world.set_deadline(options.waits.deadline);
  states = world.duplicate("states");
  std::vector<int> ranks = compare_engines(states, figures, hash);
  const MemoryBudget& budget = options.budget;
  check_budgets(
      states, std::ranges::all_of(of_ranks, [&](const PlannedPrograms& of) { return budget.holds(of.plan); }),
      [&] {
        std::vector<MemoryPlan> plans;
        for (const PlannedPrograms& planned : of_ranks) plans.push_back(planned.plan);
        return explain_misfit(layout, options.mesh, specs, plans, budget, options.cost);
      });
  std::vector<RankPrograms> of_all;  // every rank proves what all run
  for (const PlannedPrograms& planned : of_ranks)
    of_all.push_back({planned.programs, &planned.plan, planned.first_data_rank});
  numerics = prove_engine(layout, options, of_all);
  const int own_place = programs_of_ranks(options.mesh, first_data_ranks(specs))[world.rank()];
  PlannedPrograms& own = of_ranks[own_place];
  programs = std::move(own.programs);
  plan = std::move(own.plan);
  // A lane may stand behind several collectives; each keeps the deadline itself, and knows whom it waits for.
  device = make_device(options.device, {.rank = world.global_rank(),
                                        .ordinal = options.device_ordinal,
                                        .waiting = options.waits.waiting,
                                        .busy_threads = world.world() * (options.threads_per_rank + 1),
                                        .deadline = 10 * options.waits.deadline,
                                        .fill_poisoned = options.debug.poison});
  world.attach(device->failure());
  const HostPlace host = place_on_host(states);
  check_memory_room(states, host, host_memory_of(options, plan));
  if (options.strategy.offload.on_disk())
    check_disk_room(states, host, options.disk_directory, plan.space(Space::disk).arena_bytes);
  const bool on_gpu = options.device == DeviceType::cuda;
  const std::int64_t used_before = on_gpu ? read_gpu_used_bytes(options.device_ordinal) : 0;
  executor = std::make_unique<Executor>(world, std::move(ranks), *device, layout, programs, plan, options);
  if (on_gpu) {
    const DeviceRoom room =
        device_room(options.device_ordinal, plan.space(Space::device).arena_bytes, used_before);
    library_bytes = room.library_bytes;
    check_device_room(states, budget, room);
  }
  executor->take_memory();
  find_states();
}

void Engine::Impl::check_alive(const char* call) const {
  if (!failure.empty()) throw UsageError(fmt::format("{}: the engine has failed before: {}", call, failure));
}

void Engine::Impl::fail(const std::string& message) {
  if (failure.empty()) failure = message;
  if (device) device->failure().set(message);
}

std::string Engine::Impl::expected() {
  if (!running()) return "begin()";
  if (!open_uses.empty() && instruction(open_uses.back()).edge == UseEdge::whole)
    return "the end of the lease of " + describe(program(), open_uses.back());
  const InstructionId next = executor->advance();
  if (instruction(next).op == Opcode::reduce_scalars) return "step()";
  if (instruction(next).edge == UseEdge::close) return "the end of the lease of " + describe(program(), next);
  return describe(program(), next);
}

Engine::Engine(Communicator world, std::vector<UnitSpec> units, EngineOptions options)
    : impl_(std::make_unique<Impl>(std::move(world), std::move(units), std::move(options))) {
  impl_->self = std::make_shared<Engine*>(this);
}
Engine::~Engine() {
  *impl_->self = nullptr;
  // Lanes may wait for peers that will never come; nothing is sent, but they are told to stop waiting.
  if (impl_->running())
    impl_->device->failure().set(fmt::format("the engine was destroyed in the middle of a step{}",
                                             std::uncaught_exceptions() > 0 ? ", by an exception" : ""));
  for (const std::weak_ptr<StatesReader>& one : impl_->readers)
    if (const std::shared_ptr<StatesReader> reader = one.lock()) reader->before_engine_goes();
}

const Layout& Engine::layout() const { return impl_->layout; }
const MemoryPlan& Engine::plan() const { return impl_->plan; }
const Program& Engine::program(int index) const {
  if (index < 0 || index >= static_cast<int>(impl_->programs.size()))
    throw UsageError(
        fmt::format("program: {} does not exist; the engine has 0 to {}", index, impl_->programs.size() - 1));
  return impl_->programs[index];
}
int Engine::rank() const { return impl_->world.rank(); }
int Engine::world() const { return impl_->world.world(); }
const EngineOptions& Engine::options() const { return impl_->options; }
const Numerics& Engine::numerics() const { return impl_->numerics; }
float Engine::loss_scale() const { return impl_->scale(); }
std::int64_t Engine::steps_applied() const { return impl_->steps_applied; }
std::int64_t Engine::changes() const { return impl_->changes; }
void* Engine::address(BufferId buffer) const {
  if (impl_->open_uses.empty())
    throw UsageError("address: no lease is open; buffers lie still only within a use");
  const auto buffers = impl_->program().buffers.count();
  if (buffer < 0 || buffer >= buffers)
    throw UsageError(fmt::format("address: buffer {} does not exist; the running program has 0 to {}", buffer,
                                 buffers - 1));
  // Where it is none of theirs, another microbatch's may lie there by now, on its way to another rank.
  const Instruction& use = impl_->instruction(impl_->open_uses.back());
  if (!use.touches(buffer)) return nullptr;
  return impl_->executor->address(buffer, impl_->open_uses.back());
}
void* Engine::stream() const { return impl_->executor->stream(); }
void Engine::transfer(void* to, const void* from, std::int64_t bytes) {
  check_copy("transfer", to, from, bytes);
  if (bytes > 0) impl_->executor->transfer(to, from, bytes);
}
void Engine::upload(void* to, const void* from, std::int64_t bytes) {
  check_copy("upload", to, from, bytes);
  if (bytes > 0) impl_->executor->upload(to, from, bytes);
}
const ByteCounters& Engine::bytes(Space space) const { return impl_->executor->bytes(space); }
std::string Engine::disk_description() const {
  const device::Disk* disk = impl_->executor->disk();
  return disk == nullptr ? std::string() : disk->description();
}
std::vector<std::string> Engine::notices() const { return impl_->device->notices(); }
std::int64_t Engine::library_bytes() const { return impl_->library_bytes; }
std::int64_t Engine::bytes_received(Axis axis) const { return impl_->executor->bytes_received(axis); }
const Program& Engine::running() const {
  if (!impl_->running()) throw UsageError("running: no step is running; call begin first");
  return impl_->program();
}
std::int64_t Engine::address_space_before() const { return impl_->executor->address_space_before(); }
const ArenaRegistration& Engine::arena_registration() const { return impl_->executor->registration(); }
void Engine::set_peak_observer(std::function<void()> observer) {
  impl_->check_between_steps("set_peak_observer");
  impl_->executor->set_peak_observer(std::move(observer));
}
void Engine::set_tracing(bool on) {
  impl_->check_between_steps("set_tracing");
  impl_->executor->set_tracing(on);
}
StepTiming Engine::timing() const { return impl_->executor->timing(); }
std::span<const TraceSpan> Engine::trace() const { return impl_->executor->trace(); }
void Engine::fail(const std::string& message) { impl_->fail(message); }

double StepTiming::hidden() const {
  if (communication_us <= 0) return 1.0;
  return std::clamp(1.0 - exposed_us / communication_us, 0.0, 1.0);
}

int Engine::own_microbatches(int index) const { return program(index).own_microbatches(); }

void Engine::begin(StepKind kind, int microbatches, const StepTerms& terms) {
  impl_->check_alive("begin");
  const IdVector<Program>& programs = impl_->programs;
  for (std::size_t index = 0; index < programs.size(); ++index)
    if (programs[index].kind == kind && programs[index].microbatches == microbatches)
      return begin_program(static_cast<int>(index), terms);
  std::string known;
  for (const EngineProgram& program : impl_->options.programs)
    known += fmt::format("{}{} with {} microbatches", known.empty() ? "" : ", ", name_of(program.kind),
                         program.microbatches);
  throw UsageError(fmt::format("begin: no program to {} with {} microbatches; this engine has: {}",
                               name_of(kind), microbatches, known));
}

void Engine::begin_program(int index, const StepTerms& terms) {
  const auto check = [&] {
    impl_->check_whole("begin");
    impl_->check_program("begin", index);
  };
  impl_->guarded("begin", check, [&] {
    if (impl_->running())
      throw UsageError(fmt::format("begin: a step is running; the program expects {}", impl_->expected()));
    const std::optional<Executor::UpdateTerms> early = impl_->early_terms(index, terms);
    if (terms.captured && (impl_->offered_program != index || impl_->offered != StepMode::captured))
      throw UsageError("begin: terms.captured is true; it may be where next_step() said StepMode::captured");
    impl_->begin_step(index, terms);
    if (terms.captured) impl_->executor->begin_capture(index, terms.continues);
    impl_->executor->start(index, terms.continues);
    impl_->executor->give_values(impl_->step_values());
    if (early) impl_->executor->give_terms(*early);
    impl_->executor->advance();
  });
}

void Engine::add_loss(const LossTotal* total) {
  impl_->guarded("add_loss", [&] {
    if (total == nullptr) throw UsageError("add_loss: total is null; give an address on the device");
    if (!impl_->running()) throw UsageError("add_loss: no step is running; call begin first");
    if (impl_->counts_loss()) impl_->executor->add_loss(total);
  });
}

StepResult Engine::step(const StepInputs& inputs) {
  return impl_->guarded("step", [&] {
    if (!impl_->running()) throw UsageError("step: no step is running; call begin first");
    impl_->check_uses_done("step");
    impl_->check_step(inputs, impl_->executor->updates_early());
    return impl_->finish_step(inputs);
  });
}

void Engine::end_evaluation() {
  impl_->guarded("end_evaluation", [&] {
    if (!impl_->running() || impl_->program().kind != StepKind::evaluate)
      throw UsageError(
          "end_evaluation: no evaluation is running; begin one, and end a training step by step() or "
          "abandon()");
    impl_->check_uses_done("end_evaluation");
    impl_->finish_step({.weight = 0.0});
  });
}

StepResult Engine::abandon() {
  return impl_->guarded("abandon", [&] {
    if (!impl_->running()) throw UsageError("abandon: no step is running; call begin first");
    if (!impl_->open_uses.empty())
      throw UsageError(fmt::format("abandon: a lease is open; end it first ({})", impl_->expected()));
    if (impl_->executor->updates_early())
      throw UsageError("abandon: with strategy.update reduced some of the step is already in the weights");
    impl_->abandoned = true;
    for (;;) {
      const InstructionId next = impl_->executor->advance();
      if (impl_->instruction(next).op == Opcode::reduce_scalars) break;
      if (impl_->instruction(next).edge == UseEdge::close) {
        impl_->open_uses.pop_back();
        impl_->close(next);
        continue;
      }
      impl_->open("abandon", impl_->instruction(next).unit, impl_->instruction(next).pass);
      impl_->zero_unwritten(next);
      if (impl_->instruction(next).edge == UseEdge::open) continue;
      impl_->open_uses.pop_back();
      impl_->close(next);
    }
    const int index = impl_->executor->program_index();
    const StepResult result = impl_->finish_step({.weight = 0.0});
    if (impl_->terms.captured) impl_->executor->drop_graph(index);  // no other step is to be like this one
    return result;
  });
}

void Engine::Impl::check_uses_done(const char* call) {
  if (!open_uses.empty() || instruction(executor->advance()).op != Opcode::reduce_scalars)
    throw UsageError(fmt::format("{}: the program expects {} first", call, expected()));
}

StepResult Engine::Impl::finish_step(const StepInputs& inputs) {
  const Executor::ScalarHeader header = header_of(inputs, executor->program_index());
  const StepKind kind = program().kind;
  if (kind == StepKind::train) before_change();
  if (executor->finish(header)) return result_of(kind);
  StepResult refused;
  refused.step = steps_applied;
  refused.reason = SkipReason::not_captured;
  return refused;
}

}  // namespace tessera
