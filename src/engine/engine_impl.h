// What an Engine holds. engine.cpp has its life and the verbs, lease.cpp leases, initial_values.cpp and
// states.cpp the access to parameters, optimizer state and gradients, checkpoint_verbs.cpp that by the bytes
// of persistent buffers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/executor.h"
#include "src/engine/initial_values.h"
#include "tessera/engine.h"
#include "tessera/pipeline.h"

namespace tessera {

// Throws UsageError for options that mean nothing on this world; the deadline becomes one that waits take.
EngineOptions checked_options(EngineOptions options, const Communicator& world,
                              const std::vector<UnitSpec>& units);

struct Engine::Impl {
  Impl(Communicator world, std::vector<UnitSpec> units, EngineOptions options);

  std::shared_ptr<Engine*> self;  // leases hold it; to null when the engine is destroyed
  EngineOptions options;
  Communicator world;
  Layout layout;
  Coordinates coordinates;  // of this rank in the mesh
  Partition partition;
  Spreads spreads;
  IdVector<Program> programs;
  Numerics numerics;
  IdVector<IdArray<BufferId, 4>> states_of;  // [flat][StateKind] where they persist; −1: not on this rank
  MemoryPlan plan;
  std::unique_ptr<Device> device;
  std::int64_t library_bytes = 0;
  Communicator states;  // for what is read, and initial values
  std::unique_ptr<Executor> executor;
  std::vector<std::byte> staging;  // on the host, of store() and load()
  std::uint64_t hash = 0;          // of programs and options: equal on all ranks
  LossScaler scaler;
  std::int64_t steps_applied = 0;
  std::string failure;                 // why every further call is refused; empty while all is well
  std::optional<std::string> loading;  // what the states are half of; none while they are whole

  std::int64_t steps_begun = 0;
  int offered_program = -1;  // by next_step(), which is offered this
  StepMode offered = StepMode::eager;

  // The running step.
  std::vector<InstructionId> open_uses;  // leases, innermost last
  bool abandoned = false;
  StepTerms terms = {};         // of the running step
  bool evaluated_last = false;  // by the step before
  std::int64_t changes = 0;     // see Engine::changes()

  std::vector<std::weak_ptr<StatesReader>> readers;  // that the next change waits for

  bool running() const { return !executor->idle(); }
  // Tensor ranks see the same microbatches: the first's losses and weights count.
  bool counts_loss() const { return coordinates[Axis::tensor] == 0; }
  const Program& program() const { return executor->program(); }
  const Instruction& instruction(InstructionId id) const { return program().instructions[id]; }
  std::string expected();  // what the program wants next, in words
  float scale() const { return options.loss_scaling ? static_cast<float>(scaler.scale()) : 1.0f; }

  // Runs `body`; whatever it throws has failed this rank for all others, and this engine for good.
  template <typename Body>
  auto guarded(const char* call, Body&& body);
  // The same after `check`, which refuses what does not exist: what it throws leaves the engine as it was.
  template <typename Check, typename Body>
  auto guarded(const char* call, Check&& check, Body&& body);
  void check_alive(const char* call) const;
  void fail(const std::string& message);

  // `call` is the verb's name, for messages.
  InstructionId open(const char* call, UnitId unit, Pass pass);
  void close(InstructionId use);
  const Instruction& whole_use(InstructionId use) const;
  // nullptr where its unit declares none.
  const PartSpec* part_of(const Instruction& use) const;
  const Operand& gradient_of(const Instruction& use, ParameterId parameter) const;
  void zero_unwritten(InstructionId use);
  StepResult finish_step(const StepInputs& inputs);

  // begin_and_end.cpp
  void check_program(const char* call, int index) const;
  // What the updates take, if the step trains and they do not wait for its decision; else none.
  std::optional<Executor::UpdateTerms> early_terms(int index, const StepTerms& given);
  void begin_step(int index, const StepTerms& given);
  Executor::StepValues step_values() const;
  void check_step(const StepInputs& inputs, bool early);
  Executor::ScalarHeader header_of(const StepInputs& inputs, int index) const;
  StepResult result_of(StepKind kind);

  void find_states();
  BufferId buffer_of(FlatId flat, StateKind state) const { return states_of[flat][state]; }
  // Whether any rank has the state; this one may not, for it lies on another pipeline rank.
  bool exists(FlatId flat, StateKind state) const;
  // How the flat's state lies on the ranks.
  Spread spread_of(FlatId flat, StateKind state) const;
  // The first rank, of those at this place along the tensor axis, that holds the element of the flat, where
  // it lies so on the ranks.
  int owner(FlatId flat, const Spread& spread, std::int64_t offset, int tensor_rank) const;
  // Elements of a parameter that all ranks are to know.
  struct Wanted {
    ParameterId parameter = 0;
    std::int64_t begin = 0;  // of the whole parameter
    std::span<float> values;
    std::string_view what;  // for messages
    const char* call = nullptr;
  };
  template <typename Load>
  void bring(const Wanted& wanted, const Spread& spread, const Load& load);
  template <typename Load>
  void bring_share(const Wanted& wanted, const Spread& spread, int tensor_rank, std::int64_t begin,
                   std::span<float> values, const Load& load);
  void store_parameter(ParameterId parameter, StateKind state, std::int64_t begin,
                       std::span<const float> values);
  // The buffer of the state alone: −1 where there is none, and where the parameter is its own master.
  BufferId own_buffer(FlatId flat, StateKind state) const;
  void check_flat(const char* call, FlatId flat) const;
  void check_persistent(const char* call, FlatId flat, StateKind state, std::int64_t offset,
                        std::size_t bytes) const;
  // The elements of the flat's state that this rank holds, where it holds any.
  ElementRange held(FlatId flat, StateKind state) const {
    return range_of(layout.flat(flat), spread_of(flat, state), coordinates);
  }
  static constexpr std::int64_t kChunkNumel = 1 << 20;  // at once, on its way to or from a buffer
  // Without an identity samples of what `fill` gives take its place.
  void initialize(const Fill& fill, std::optional<std::uint64_t> identity);
  void fill_share(const Fill& fill, ParameterId parameter, std::int64_t begin, std::span<float> values) const;
  // Sets all that this rank holds: parameters and masters to what `fill` gives, moments to 0.
  InitialValues fill_states(const Fill& fill, std::uint64_t identity);
  void store(FlatId flat, StateKind state, std::int64_t offset, std::span<const float> values);
  void load(FlatId flat, StateKind state, std::int64_t offset, std::span<float> values);
  // In pieces that `read` gives in `type`.
  template <typename Read>
  void load(DType type, std::span<float> values, const Read& read);
  DType stored_type(FlatId flat, StateKind state) const;
  void check_between_steps(const char* call) const;
  void check_whole(const char* call) const;  // the states
  void before_change();                      // on every rank at the same place in its order of calls
  void check_uses_done(const char* call);    // of the running step; no lease is open
  // Also that the last step's updates are done: this rank's call alone cannot do them.
  void check_finished(const char* call) const;
};

template <typename Body>
auto Engine::Impl::guarded(const char* call, Body&& body) {
  check_alive(call);
  try {
    return body();
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  } catch (...) {  // a callback may throw anything
    fail(std::string(call) + " ended by an exception that is not a std::exception");
    throw;
  }
}

template <typename Check, typename Body>
auto Engine::Impl::guarded(const char* call, Check&& check, Body&& body) {
  check_alive(call);
  check();
  return guarded(call, body);
}

}  // namespace tessera
