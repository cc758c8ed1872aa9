// The engine: runs a step's program for a trainer that owns its compute. Owns the arena, the lanes and the
// model's states; imposes no tensor type, allocator or autograd: pointers, numel, dtype.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/communicator.h"
#include "tessera/engine_options.h"
#include "tessera/loss_total.h"
#include "tessera/numerics.h"
#include "tessera/operand.h"
#include "tessera/unit_spec.h"

namespace tessera {

// Defined in tessera/device.h, layout.h, memory_plan.h, program.h and simulate.h.
class ByteCounters;
class Layout;
struct MemoryPlan;
struct Program;
struct TraceSpan;

// A unit's parameter or gradient during a lease: this rank's share of one that is cut over the tensor axis
// (Layout::shares), in which the padding of a cut is to stay 0, and its gradient to be 0.
struct TensorView {
  void* data = nullptr;
  std::int64_t numel = 0;
  DType dtype = DType::fp32;
  std::string_view name = {};  // the parameter's; valid as long as the engine

  // The elements as T: float if the parameter is fp32; if it is bf16 or fp16, any type of 2 bytes, such as
  // std::uint16_t or __nv_bfloat16. UsageError otherwise, naming the parameter and both types.
  template <typename T>
  std::span<T> as() const {
    static_assert(
        std::is_same_v<std::remove_const_t<T>, float> || (sizeof(T) == 2 && std::is_trivially_copyable_v<T>),
        "elements are float, or a type of 2 bytes");
    check_element(std::is_same_v<std::remove_const_t<T>, float>);
    return {static_cast<T*>(data), static_cast<std::size_t>(numel)};
  }

 private:
  void check_element(bool asks_for_float) const;
};

class Engine;

// The ranks along the tensor axis during a lease, for a trainer that splits its layers over them
// (EngineOptions::splits_layers). Its calls are collectives: all ranks along the axis make the same ones, in
// the same order, while their leases of the use are open. Arguments besides pointers are equal on all.
//
// On the CPU a call returns when its result is there. On a GPU it is enqueued on Engine::stream(), behind the
// trainer's own work. Memory is that of the engine's device, anywhere on it. Sums are exact (Reduction): one
// fp32 chain in the order of the ranks. Bytes count in Engine::bytes_received(Axis::tensor), time as the
// use's own. With mesh.tensor 1 a call is what one rank makes of it: a copy, or nothing.
//
// A call fails as those of a Communicator do. It is a UsageError, and fails the engine on all ranks, for
// arguments that mean nothing and when the lease has ended.
class TensorGroup {
 public:
  int ranks() const;  // along the axis
  int rank() const;   // this one's place there

  // whole[r] = rank r's part. In place if part == whole + rank() · part_bytes; otherwise they do not overlap.
  void all_gather(const void* part, void* whole, std::int64_t part_bytes);
  // part = the sum over ranks of part rank() of their wholes, each of which has ranks() · part_numel elements
  // of `type`. In place if `type` is fp32 and part == whole + rank() · part_numel; otherwise they do not
  // overlap.
  void reduce_scatter(const void* whole, DType type, float* part, std::int64_t part_numel);
  // Each value becomes the sum over ranks, the same bits on all.
  void all_reduce(float* values, std::int64_t numel);

 private:
  friend class UnitLease;
  TensorGroup(std::shared_ptr<Engine*> engine, std::int64_t step, InstructionId use);
  Engine& engine() const;
  template <class Call>
  void make(const char* name, const Call& call) const;

  std::shared_ptr<Engine*> engine_;  // to null: the engine was destroyed
  std::int64_t step_;                // of those that the engine has begun
  InstructionId use_;
};

// A use of a unit in progress: its parameters are gathered and, in backward, its gradients can be written.
// Pointers are valid until end(); all gathers of a unit use one address. Moves, does not copy. Destroyed
// without end(), it fails the engine on all ranks. Where the engine goes first, which fails the others as
// well, all calls throw UsageError.
class UnitLease {
 public:
  UnitLease(UnitLease&& other) noexcept;
  UnitLease& operator=(UnitLease&& other) noexcept;  // one that was open here is destroyed before its end()
  ~UnitLease();

  UnitId unit() const;
  Pass pass() const;
  int microbatch() const;

  // `parameter` is one of the unit's, tied ones included. UsageError otherwise, and where the pass does not
  // read them (UnitSpec::read_in_forward_only).
  TensorView parameter(ParameterId parameter) const;
  // In backward, of a trainable parameter: where to write the gradient of loss_scale() · Σ loss, in the
  // parameter's type.
  TensorView gradient(ParameterId parameter) const;
  // 1: add to what is there, which begins at 0; 0, only with EngineOptions::overwrites_gradients: overwrite,
  // the memory holds garbage. A unit with a parameter tied to another of its own writes the gradients in the
  // order of its parameters.
  float gradient_beta(ParameterId parameter) const;
  // The same for all gradients of the unit; UsageError where they differ (a tied parameter).
  float gradient_beta() const;
  // Whether the use writes gradients of parameters: one of backward does, unless its unit's weight gradients
  // run apart (UnitActivations::splits_backward); then a use of Pass::weight_gradient does.
  bool writes_gradients() const;
  // The part that runs, by its place in UnitGraph::parts, of a unit whose activations the engine plans
  // (EngineProgram::activations). Each part is a use of its own. −1: the unit declares none.
  int part() const;
  // Where the use finds something that units share, or its workspace (Role::batch to Role::input_gradient,
  // Role::workspace), on the device; nullptr where it has none of that role. A role's access is in
  // running().at(...).operands.
  void* address(Role role) const;
  // The same for a value of the unit's own, or one that units share; nullptr where the part does not touch
  // it, or it has no bytes.
  void* value(ValueId value) const;
  // The ranks along the tensor axis, until end(). UsageError without EngineOptions::splits_layers.
  TensorGroup tensor() const;

  // Ends the use: parameters may be released, gradients reduced. Throws what a lane failed with.
  void end();

 private:
  friend class Engine;
  UnitLease(std::shared_ptr<Engine*> engine, InstructionId instruction);
  Engine& engine() const;

  std::shared_ptr<Engine*> engine_;  // none: the use has ended; to null: the engine was destroyed
  InstructionId instruction_;
};

// What some steps need when they begin. Equal on all ranks.
struct StepTerms {
  // A training step with Strategy::update reduced, since its updates run before it ends: the learning rate as
  // in StepInputs and, exactly, Σ weight over all ranks of the StepInputs that will end it, from about 3e-39
  // to 1e45.
  double learning_rate = 0.0;
  double weight = 0.0;
  // An evaluation right behind another: goes on with the sums that add_loss() made there, not with what
  // StepInputs gave, so that the last of several gives the loss of all, with the bits that one of all their
  // microbatches would give.
  bool continues = false;
  // What the step's uses enqueue is captured, and done when the step ends: see Engine::next_step().
  bool captured = false;
};

// How the next step of a program is run.
enum class StepMode : std::uint8_t {
  eager,     // its uses are called, and what they enqueue is done meanwhile
  captured,  // they are called, with StepTerms::captured; what they enqueue is done when the step ends
  replayed   // by Engine::replay(), without a use
};

// Where kernels of a captured step find what changes from step to step, in memory of the device.
struct StepPlace {
  const std::int64_t* updates = nullptr;  // Engine::steps_applied() before the step
  const float* loss_scale = nullptr;      // Engine::loss_scale()
};

// What the caller adds to a step: this rank's sums over all its microbatches. Ranks' sums, and what
// add_loss() adds, are added exactly, in whatever order. Of the ranks along the tensor axis, which see the
// same samples, the first one's sums count. But a sum here was rounded by its caller: that other worlds, with
// other ranks, give the same loss to the bit is promised only of what add_loss() is given for each
// microbatch.
struct StepInputs {
  double learning_rate = 0.0;  // 0 or more, finite in fp32, times any group's factor too; equal on all ranks
  double weight = 1.0;         // what the loss sum is divided by, tokens say, 0 or more; the ranks' are added
  double loss = 0.0;           // Σ loss on this rank
};

// not_captured: of a step with StepTerms::captured that some rank's driver did not take. Nothing of it was
// done; it is to be begun anew, eagerly.
enum class SkipReason : std::uint8_t { none, not_finite, abandoned, no_weight, not_captured };

struct StepResult {
  std::int64_t step = 0;  // updates applied so far, this one included
  bool applied = false;
  // not_finite: a gradient, or the weight that it is divided by; also of a step that was applied all the same
  // (Strategy::update reduced).
  SkipReason reason = SkipReason::none;
  std::string first_nonfinite;  // the parameter, where its gradient is the reason
  double loss = 0.0;            // Σ loss / Σ weight over all ranks and microbatches
  double weight = 0.0;          // Σ weight
  double gradient_norm = 0.0;   // of the mean gradient, before clipping; NaN where it is not finite; 0 for an
                                // evaluation
  double loss_scale = 1.0;      // that this step ran with
  double learning_rate = 0.0;
  std::vector<double> parameter_norms;  // by ParameterId, of the mean gradient; empty unless asked for
};

// Which value of a parameter: the fp32 one that is updated (master, or an fp32 parameter itself), the one
// that compute sees, or a moment of the optimizer. A frozen parameter has only what compute sees.
enum class StateKind : std::uint8_t { master, parameter, moment1, moment2 };
std::string_view name_of(StateKind state);

// A step's timing on this rank. What a lane does is timed where it does it: on a GPU's stream by the GPU.
struct StepTiming {
  double total_us = 0;          // by the host's clock, until the step is complete
  double issue_us = 0;          // until all lanes had been given their work; on the CPU the caller computes
  double communication_us = 0;  // exchanges with other ranks, copies and host updates off the compute lane
  double exposed_us = 0;        // the compute lane waited for other lanes
  double hidden() const;        // 1 − exposed / communication, within [0, 1]
};

// Reads parameters and states beside steps, on threads of its own, as a checkpoint that is being written
// does.
class StatesReader {
 public:
  virtual ~StatesReader() = default;
  // Called once, on the thread of a call that is about to change any of them: returns when nothing more is
  // read. Collective where each rank has such a reader. What it throws fails the engine.
  virtual void before_change() = 0;
  // The engine goes, and before_change() has not returned: nothing more is read when this returns. Waits for
  // no peer.
  virtual void before_engine_goes() noexcept = 0;
};

// Every rank of the world makes one, with equal arguments: what would make ranks diverge is compared here and
// at every step. All calls on one thread. A call out of order throws UsageError, naming the call and what the
// program expects; the engine has then failed, here and, within the deadline, on every other rank. So it has
// where a step's own figures are refused. A program, a parameter or a range of one that does not exist is
// refused and leaves the engine as it was (a unit is not: its use is out of order); in a collective call the
// other ranks then wait for this one.
class Engine {
 public:
  // Builds, plans and verifies the programs, takes the arena, and compares hashes over all ranks
  // (collective). UsageError for options that do not fit, or a budget that is exceeded (with the table of
  // what is missing).
  Engine(Communicator world, std::vector<UnitSpec> units, EngineOptions options);
  // Waits for no peer. In the middle of a step, the world can no longer be used. On GPUs of several
  // processes, all ranks first meet behind their last step, by a barrier() of the world: a peer's GPU may
  // still be reading what this one sent.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Layout& layout() const;
  const MemoryPlan& plan() const;
  const Program& program(int index) const;  // by place in EngineOptions::programs
  int rank() const;
  int world() const;
  const EngineOptions& options() const;
  // What decides the bits of its steps, over all ranks. Equal on all ranks.
  const Numerics& numerics() const;

  // Begins a step of the program with this kind and number of microbatches, EngineProgram::microbatches.
  // UsageError that lists the programs where there is none, for a training step with Strategy::update reduced
  // whose terms are missing, and where what `continues` was no evaluation.
  void begin(StepKind kind, int microbatches = 1, const StepTerms& terms = {});
  void begin_program(int index, const StepTerms& terms = {});  // by place in EngineOptions::programs
  // How many microbatches this rank has in a step of that program: one fewer than begin() is given where it
  // rests in the last round.
  int own_microbatches(int index = 0) const;

  // The next use of the program; of a unit that declares several parts for the pass, the next of them. Blocks
  // the calling thread until the unit's parameters are gathered. Where the order opens a use, the lease stays
  // until the matching close, with other leases inside.
  UnitLease use(UnitId unit, Pass pass);
  // Instead of use: contributes nothing, still meets every collective. Its gradients are zeroed, and so is
  // what it hands on of the program's activations: a unit's output, or the gradient of its input, which may
  // go to another pipeline rank. Of a use that has others inside it only these can be skipped. A use whose
  // lease calls its TensorGroup is skipped by all ranks along the tensor axis, or by none.
  void skip(UnitId unit, Pass pass);
  // Adds, behind what is enqueued on stream(), a microbatch's losses and count to the step's loss and weight,
  // beside what step() is given: for a trainer whose sums lie on the device, so that they need not come to
  // the host. `total` is read in that order. Within a step.
  void add_loss(const LossTotal* total);
  // After the last use: reduces, decides, updates. Returns when the step is complete on this rank. UsageError
  // for inputs that are not what StepInputs says, on whichever rank, before anything is updated. With
  // Strategy::update reduced everything has been updated by then; UsageError there, too, where the step ends
  // on other terms than it began with.
  // Look at `applied`: a step that was skipped changed nothing.
  [[nodiscard]] StepResult step(const StepInputs& inputs);
  // Instead of step(), of an evaluation whose loss nobody wants: inference. Each rank may call this or
  // step().
  void end_evaluation();
  // Instead of the rest of a step: drops the gradients on all ranks; still to be met by every other rank's
  // step() or abandon(), those along the tensor axis at the same place if later leases call TensorGroup. The
  // result says abandoned on all of them, of an evaluation too. UsageError for a training step with
  // Strategy::update reduced.
  StepResult abandon();

  // A step on a GPU as one CUDA graph, so that the host issues one call instead of thousands. A trainer that
  // enqueues the same kernels in every step of a program, with everything that changes in memory that they
  // read (upload(), step_place()), asks before each step how to run it (collective). The first
  // EngineOptions::kEagerSteps are eager, and so are all where not_captured() says why. The next one is
  // captured: begin_program() has StepTerms::captured, leases are used as ever, but nobody waits for the
  // device, and step() does all of it. From then on steps are replayed. Same bits as eagerly.
  StepMode next_step(int program, const StepTerms& terms = {});
  // Why a program's steps are not captured on this rank, in words; empty where they are, or may yet be.
  std::string not_captured(int program) const;
  // How many kernels, copies and fills its captured step has; 0 where there is none.
  std::size_t captured_operations(int program) const;
  // A step of a program that was captured. `upload` is called for each upload() of the trainer that was, by
  // its number from 0, and writes the bytes of this step. UsageError where next_step() did not say so.
  using Upload = std::function<void(int number, std::span<std::byte> bytes)>;
  [[nodiscard]] StepResult replay(int program, const StepTerms& terms, const StepInputs& inputs,
                                  const Upload& upload);
  // Where the running step's numbers lie in the device's memory. All null on the CPU, and in an evaluation.
  StepPlace step_place() const;

  // The scale that the gradients of this step carry; a power of two.
  float loss_scale() const;
  std::int64_t steps_applied() const;
  // Grows whenever parameters or states may have changed: by training steps, and by whatever writes them.
  std::int64_t changes() const;

  // Fills parameters from a function of global coordinates: `fill(parameter, begin, values)` sets elements
  // begin, begin + 1, … row-major. Must give equal values on all ranks, and whenever it is asked: UsageError
  // where it gives others the second time. Called for what this rank holds, and for up to 16 elements of
  // every parameter; of a parameter that is cut over tensor ranks, for each run of elements that are next to
  // each other in the rank's share. The ranks compare these, and all that several of them hold (collective):
  // a CommunicationError names one that was given others (another seed, say). Moments are zeroed. Before it,
  // or until a checkpoint is loaded, all parameters are 0. Between steps.
  using Fill = std::function<void(ParameterId parameter, std::int64_t begin, std::span<float> values)>;
  void initialize(const Fill& fill);
  // The same, called for what this rank holds only: instead of samples the ranks compare `identity`, a hash
  // of where the values come from.
  void initialize(const Fill& fill, std::uint64_t identity);
  // With Strategy::update next: does the updates that the last step left (collective). Before a step of
  // another program, read() and write() it is done by itself; whoever looks at parameters or states in
  // another way calls it first. Does nothing where nothing is left. Between steps.
  void finish_updates();
  // Elements [begin, begin + values.numel) of a state, row-major in the whole parameter, on every rank
  // (collective, equal arguments). Between steps.
  void read(ParameterId parameter, StateKind state, std::int64_t begin, std::span<float> values);
  // The same of a reduced gradient, in a training step, behind its last use and before step(): the sum over
  // ranks and microbatches, times loss_scale(), neither divided by the step's weight nor clipped. Waits until
  // gradients are reduced; changes nothing. UsageError for a frozen parameter, and with Strategy::update
  // reduced, whose gradients are gone by then.
  void read_gradient(ParameterId parameter, std::int64_t begin, std::span<float> values);
  // Like read(), inwards: every rank gives the same values, and keeps what it holds, moments in bf16 rounded
  // to the nearest. Writing the master also writes the rounded parameter; a trainable parameter is written
  // through its master only. The ranks compare what they were given before anything changes:
  // CommunicationError that names the parameter, and of the first element that differs its index and both
  // values.
  void write(ParameterId parameter, StateKind state, std::int64_t begin, std::span<const float> values);

  // For checkpoints, between steps: the bytes of a persistent buffer of a flat on this rank, 0 where it has
  // none (an fp32 parameter is its own master); those from `offset` on, to and from memory of the host; and
  // where they lie, empty where that is not in memory that the host can read. What lies on the disk takes up
  // to kPieceBytes of memory meanwhile. UsageError where finish_updates() is due, and for writing where
  // wait_for_readers() is.
  static constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
  std::int64_t persistent_bytes(FlatId flat, StateKind state) const;
  void read_persistent(FlatId flat, StateKind state, std::int64_t offset, std::span<std::byte> to);
  void write_persistent(FlatId flat, StateKind state, std::int64_t offset, std::span<const std::byte> from);
  std::span<std::byte> persistent(FlatId flat, StateKind state);
  // Where it lies; on the CPU `device` is memory of the host, too. UsageError where this rank has none.
  Space persistent_space(FlatId flat, StateKind state) const;
  // The next change of parameters or states, unless the reader is destroyed by then, waits for it: of a
  // training step in step() or abandon(), but in begin() with Strategy::update reduced and where the step is
  // captured. Every rank adds one at the same place in its order of calls. Between steps; UsageError where
  // finish_updates() is due. On a GPU the first one takes kPieceBytes of pinned memory of the host, and a
  // stream; an EnvironmentError where it cannot leaves the engine as it was.
  void add_reader(const std::shared_ptr<StatesReader>& reader);
  // read_persistent() for readers: on threads of their own, beside steps, until before_change() returns.
  // UsageError for what lies on the disk.
  void read_beside(FlatId flat, StateKind state, std::int64_t offset, std::span<std::byte> to) const;
  // Waits for them now, as before a change by way of persistent() or write_persistent(), which is every
  // rank's own and does not. Between steps.
  void wait_for_readers();
  // What sets states piece by piece, as load_checkpoint() does, is between these two. From the first to the
  // second the states mean nothing: begin(), read(), write() and add_reader() are UsageErrors that say `from`
  // where, and leave the engine as it was. So they stay where loading fails, until another is through, or
  // initialize(). Between steps, on every rank.
  void begin_loading(std::string from);
  void end_loading();
  // Counters that a checkpoint must carry besides the buffers.
  struct Counters {
    std::int64_t steps_applied = 0;
    std::optional<LossScaleState> loss_scaler = {};  // none without EngineOptions::loss_scaling
  };
  Counters counters() const;
  // Without a loss scaler the scale begins anew, at LossScaleOptions::initial; one is not taken where this
  // engine does not scale. UsageError, which leaves the engine as it was, in the middle of a step, and for
  // counters that cannot be: steps below 0, a scale that is not within LossScaleOptions.
  void set_counters(const Counters& counters);

  // For modules: where a buffer of the running program lies during the innermost open use; nullptr where that
  // neither reads nor writes it (a unit's output is written in forward only, say). Another use may find it
  // elsewhere. Throws UsageError where no lease is open.
  void* address(BufferId buffer) const;
  const Program& running() const;  // UsageError where no step is running
  // What a module enqueues its work on: a cudaStream_t, null on the CPU.
  void* stream() const;
  // Copies bytes between the host and the device, behind what is enqueued there; returns when they are there.
  void transfer(void* to, const void* from, std::int64_t bytes);
  // From the host to the device likewise, a microbatch say; returns when `from` may be changed, which on a
  // GPU is before it comes to the copy: the bytes go through pinned memory, 1 MiB at a time.
  void upload(void* to, const void* from, std::int64_t bytes);
  // Bytes of a space that hold something, by category, now and at their most. At most the arena; in strict
  // order, where no message between pipeline ranks is under way, at most the plan's live bytes.
  const ByteCounters& bytes(Space space = Space::device) const;
  // How the file on the disk is read and written, in words; empty where nothing lies there.
  std::string disk_description() const;
  // What the device does slower here than it could, and why: see Device::notices(). A sentence each.
  std::vector<std::string> notices() const;
  // What communicators, streams and libraries took of the GPU's memory when the engine was made, before its
  // arena, as the driver counts it. What other processes take at that moment counts along. Neither the
  // process's context is in it nor what is loaded or compiled later. 0 on the CPU.
  std::int64_t library_bytes() const;

  // Received from other ranks by the programs' collectives and messages along an axis, since the engine was
  // made; the step's scalars go along Axis::world.
  std::int64_t bytes_received(Axis axis) const;

  // Bytes of address space before the device's arena: EngineOptions::address_space_before, or 0 where the
  // system refused them. On a GPU 0.
  std::int64_t address_space_before() const;

  // Whether ranks read each other's arenas where they lie, and why not.
  const ArenaRegistration& arena_registration() const;

  // Called at the instruction where the plan is at its peak, in every step of the program that it is in, by
  // the thread that runs it: what lives there lives, other lanes may be elsewhere. Set between steps; empty:
  // none.
  void set_peak_observer(std::function<void()> observer);

  // Measures the next steps where on; costs two clock readings an instruction, on a GPU two of its events,
  // and waits for the GPU when a step begins. Between steps; what it needs is allocated here, when first on.
  void set_tracing(bool on);
  StepTiming timing() const;  // of the last traced step
  // The last step's instructions, in order of issue; empty where it was not traced. µs from the step's begin.
  std::span<const TraceSpan> trace() const;

  // Marks this rank failed for every other.
  void fail(const std::string& message);

 private:
  friend class UnitLease;
  friend class TensorGroup;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
