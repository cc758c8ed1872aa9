// Runs a program on the lanes: issues instructions in order, each behind its waits. Owns streams, channels'
// communicators and memory, and names and times what it runs for profilers and traces. What an instruction
// does is in operations.cpp; no stage, schedule or option is known here.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/context.h"
#include "kernels/gate_math.h"
#include "kernels/step_block.h"
#include "optim/update.h"
#include "src/comm/backend.h"
#include "src/device/ranges.h"
#include "src/device/uploads.h"
#include "src/engine/decision.h"
#include "src/engine/memory.h"
#include "src/engine/operand_places.h"
#include "src/engine/step_trace.h"
#include "src/engine/update_runs.h"
#include "tessera/communicator.h"
#include "tessera/engine.h"
#include "tessera/simulate.h"

namespace tessera {

class Executor {
 public:
  // `layout`, `programs`, `plan` and `options` outlive the executor. `global_ranks` are those of `world`.
  // Collective. Makes streams, connects ranks and opens libraries, which take memory of the device that is
  // not planned. Nothing else may be called before take_memory().
  Executor(const Communicator& world, std::vector<int> global_ranks, Device& device, const Layout& layout,
           const IdVector<Program>& programs, const MemoryPlan& plan, const EngineOptions& options);
  ~Executor();
  // Takes the arenas. Collective.
  void take_memory();

  // What a step begins with.
  struct StepValues {
    std::int64_t updates = 0;
    float loss_scale = 1.0f;
  };
  // What updates multiply by and count as.
  struct UpdateTerms {
    double learning_rate = 0.0;
    std::int64_t step = 0;  // from 1
    double gradient_scale = 0.0;
  };
  // `header` of finish(): this rank's part of the scalars, by Scalar.
  using ScalarHeader = std::array<double, kHostScalars>;

  // Begins a step: the cursor stands at the first instruction. `continues`: what add_loss() added in the last
  // one, of whichever program, stays.
  void start(int program, bool continues);

  // step_graph.cpp: a step as one CUDA graph. Why steps of the program are not captured, on any rank, in
  // words; empty where they may be.
  std::string not_captured(int program) const;
  // What all ranks' next step of the program is to be (collective).
  StepMode next_mode(int program, bool continues);
  std::size_t captured_operations(int program) const;
  void drop_graph(int program);
  // Captures what is issued until finish(). Then start().
  void begin_capture(int program, bool continues);
  // A step that was captured, in the place of start(), give_values(), give_terms() where updates do not wait
  // for the decision, its uses and finish(). `give` writes what the trainer uploads.
  struct Replay {
    std::optional<UpdateTerms> terms;
    StepValues values;
    ScalarHeader header;
  };
  void replay(int program, const Replay& step, const Engine::Upload& give);
  StepPlace step_place() const;
  // What changes from step to step, where the running step begins. Behind start().
  void give_values(const StepValues& values);
  // The terms of the step that has begun, where its updates do not wait for its decision.
  void give_terms(const UpdateTerms& terms);
  // Of the step that has begun, or the last one.
  bool updates_early() const { return terms_.known; }
  // The program whose last step left updates to the next one; −1 where none is left. Only that program may be
  // started then, and takes them along.
  int carried_from() const { return carried_from_; }
  // Does these updates between steps, by the program for that.
  void finish_carried();
  void drop_carried();
  // Issues everything up to the next use, or to reduce_scalars, and returns the place of that.
  InstructionId advance();
  // A use runs on the calling thread between these two; what it waits for is done when open_use returns.
  void open_use(InstructionId use);
  void close_use(InstructionId use);
  // Issues all that is left and waits for every lane. False where the step was captured and some rank's
  // driver refused: nothing of it was done, and its program is eager from then on.
  bool finish(const ScalarHeader& header);
  bool idle() const { return program_ < 0; }

  int program_index() const { return program_; }
  const Program& program() const { return programs_[program_]; }
  const Program& program(int index) const { return programs_[index]; }
  // Where a buffer of the running program lies at an instruction; nullptr where it is not alive then.
  std::byte* address(BufferId buffer, InstructionId at) const;
  // Where an operand of an instruction of the running program lies.
  const OperandPlace& place_of(InstructionId id, const Operand& operand) const {
    return operand_places_[program_].of(id, operand);
  }
  // A persistent buffer of any program, at any time.
  std::byte* persistent_address(int program, BufferId buffer) const {
    return memory_.address(program, buffer, 0);
  }
  const Decision& decision() const { return decision_; }
  // All that was issued so far is done.
  void synchronize_lanes();
  // Elements from `offset` of the flat on, within this rank's slice, of the gradient that its update will
  // read, in reduced_type(). Behind advance() to reduce_scalars, and synchronize_lanes().
  void read_gradient(FlatId flat, std::int64_t offset, std::span<std::byte> to);
  DType reduced_type(FlatId flat) const;
  // persistent.cpp. Bytes of a persistent buffer of the first program, whichever space it lies in, from
  // `offset` on, to or from memory of the host. Between steps.
  void read_persistent(BufferId buffer, std::int64_t offset, std::span<std::byte> to);
  void write_persistent(BufferId buffer, std::int64_t offset, std::span<const std::byte> from);
  void clear_persistent(BufferId buffer);
  // What read_beside() needs; the first call takes it, between steps.
  void open_beside();
  // read_persistent() of what lies on the device or the host, by other threads, beside steps.
  void read_beside(BufferId buffer, std::int64_t offset, std::span<std::byte> to) const;
  const ByteCounters& bytes(Space space) const { return memory_.counters(space); }
  const device::Disk* disk() const { return memory_.disk(); }
  // Adds to this rank's loss and weight of the running step, behind what the compute lane was given.
  void add_loss(const LossTotal* total);
  // Zeroes memory of the device before what the compute lane is given next.
  void zero(void* memory, std::int64_t bytes);
  // Copies bytes between the host and the device, behind what the compute lane was given; returns when they
  // are there.
  void transfer(void* to, const void* from, std::int64_t bytes);
  // From the host to the device, in the compute lane's order; returns when `from` may be changed.
  void upload(void* to, const void* from, std::int64_t bytes);
  void* stream() { return lane(Lane::compute).native(); }
  // tensor_group.cpp. What the trainer exchanges along the tensor axis within an open use, behind what the
  // compute lane was given.
  void all_gather_within(InstructionId use, const void* part, void* whole, std::int64_t part_bytes);
  void reduce_scatter_within(InstructionId use, const ReduceScatter& call);
  void all_reduce_within(InstructionId use, float* values, std::int64_t numel);
  std::int64_t bytes_received(Axis axis) const;
  void set_peak_observer(std::function<void()> observer) { peak_observer_ = std::move(observer); }
  void set_tracing(bool on) { trace_.set(on); }
  const ArenaRegistration& registration() const { return registration_; }
  std::int64_t address_space_before() { return memory_.arena().address_space_before(); }
  const StepTiming& timing() const { return trace_.timing(); }
  std::span<const TraceSpan> trace() const { return trace_.spans(); }

 private:
  // A decision as this rank's host knows it.
  struct Decided {
    bool known = false;
    bool apply = false;
    UpdateTerms terms = {};  // not to be written while updates may run
  };

  class Blocks;
  // A program's captured step.
  struct StepGraph {
    int eager_steps = 0;            // so far
    std::int64_t upload_bytes = 0;  // of the last one
    std::string refused = {};       // why the driver did not take it
    std::unique_ptr<CapturedWork> work = nullptr;
    device::Uploads::Captured uploads = {};
    Arena scalars = {};  // of all ranks, on the host, when it is done
    std::vector<std::pair<comm::Backend*, std::unique_ptr<comm::CapturedCalls>>> calls = {};
    bool continues = false;  // the step that was captured
  };
  // Peers are told that this rank's own thread waits for them while one of these is there, or several.
  class Waits {
   public:
    explicit Waits(Executor& executor) : executor_(executor) {
      if (executor_.waits_++ == 0) executor_.world_.set_waiting(true);
    }
    ~Waits() {
      if (--executor_.waits_ == 0) executor_.world_.set_waiting(false);
    }
    Waits(const Waits&) = delete;
    Waits& operator=(const Waits&) = delete;

   private:
    Executor& executor_;
  };
  // step_graph.cpp
  StepMode own_mode(int program, bool continues) const;
  std::vector<Stream*> device_lanes();
  void end_capture();
  void launch(StepGraph& graph);
  int least_of_ranks(int own);
  void drop_capture() noexcept;
  // The block in the device's memory that a decision lies in. Null where updates take their terms as
  // arguments, as all do on the CPU.
  kernels::StepBlock* block_of(BufferId decision) const;
  BufferId decision_buffer(BufferRole role) const;
  void give_header(const ScalarHeader& header);
  void upload_update(BufferId decision, const UpdateTerms& terms, bool gated);
  void end_step();  // behind all of its work

  void issue(InstructionId id);
  // Whether the instruction is to do something; asks the decision that it depends on, and waits for it where
  // the device cannot itself.
  bool runs(const Instruction& instruction);
  bool device_decides(const Instruction& instruction) const;
  const Decided& decided(const Instruction& instruction) const;
  void wait_for(InstructionId id, Stream& stream);
  static void run_task(void* self, std::uint64_t id);
  void run(InstructionId id, bool idle);
  void name_ranges();
  const void* range_of(InstructionId id) const { return ranges_.empty() ? nullptr : ranges_[program_][id]; }
  // While what the instruction touches still lives.
  void observe(InstructionId id) {
    if (id == peak_instruction_ && program_ == peak_program_ && peak_observer_) peak_observer_();
  }

  // operations.cpp
  void perform(InstructionId id);
  void all_gather(InstructionId id);
  void reduce_scatter(InstructionId id);
  void accumulate(InstructionId id);
  void square_sum(InstructionId id);
  void add_parameter_squares(InstructionId id, const Operand& reduced);
  Squares squares_of(InstructionId id, const Operand& reduced) const;
  SquareSum* square_sum_of(ParameterId parameter) const;
  kernels::UpdateGate* gate() const;
  void reduce_scalars(const Instruction& instruction);
  void zero(InstructionId id);
  void set_gate();
  void decide_step();
  void decide_by_scalars();
  void update(InstructionId id);
  void message(InstructionId id);
  void copy(InstructionId id);

  // channels.cpp
  // Axis, lane and, for messages, the other rank's place along the axis.
  using ChannelKey = std::tuple<Axis, Lane, int>;
  void open_channels(const Communicator& world, const Program& program);
  void bind_channels();
  std::vector<int> members_of(const ChannelKey& key) const;
  static Axis axis_of(const Program& program, const Instruction& instruction);
  Communicator& channel_of(const Instruction& instruction) {
    return channels_.at(key_of(program(), instruction));
  }
  const Communicator& channel_of(const Program& program, const Instruction& instruction) const {
    return channels_.at(key_of(program, instruction));
  }
  static ChannelKey key_of(const Program& program, const Instruction& instruction) {
    return {axis_of(program, instruction), instruction.lane, instruction.peer};
  }

  // tensor_group.cpp
  static constexpr ChannelKey kWithinUses{Axis::tensor, Lane::compute, -1};
  void open_tensor_group();
  template <class Together, class Alone>
  void within(InstructionId use, const Together& together, const Alone& alone);

  // operations.cpp, too
  InstructionId update_of(FlatId flat) const { return updates_[program_][flat].update; }
  const Instruction& instruction_at(InstructionId id) const { return program().instructions[id]; }
  CallLabel label(const Instruction& instruction) const;
  Stream& lane(Lane which) { return *lanes_[which]; }
  kernels::ComputeContext compute(Lane on);
  kernels::ComputeContext compute(InstructionId id) { return compute(instruction_at(id).lane); }
  // Place `slot` of this rank's scalars, on the device.
  double* own_scalar(int slot) const;

  Communicator world_;
  const std::vector<int> global_ranks_;
  Device& device_;
  const Layout& layout_;
  const IdVector<Program>& programs_;
  const EngineOptions& options_;
  const bool several_kinds_;  // of programs
  const bool blocks_;         // on a GPU, updates read their terms in its memory
  int rank_ = 0;
  Coordinates place_;  // in the mesh
  StepMemory memory_;
  ArenaRegistration registration_;
  std::vector<double> scalars_;                  // of all ranks, on the host
  IdVector<std::int64_t> first_places_;          // [flat] as first_places()
  IdVector<std::vector<Piece>> gaps_;            // [flat]
  IdVector<OperandPlaces> operand_places_;       // [program]
  IdVector<std::uint64_t> rounding_keys_;        // [flat] the same for the same elements on every rank
  std::map<ChannelKey, Communicator> channels_;  // programs never run at the same time and share them
  IdVector<Event> events_;                       // [instruction] of the running step
  IdVector<int> finish_of_;                      // [program] the one for what it leaves; −1: none
  IdVector<IdVector<UpdateRuns>> updates_;       // [program][flat]
  int program_ = -1;
  InstructionId cursor_ = 0;
  int waits_ = 0;  // of Waits, those that are there
  // What instructions depend on: the running step's decision, that of the step before, and the terms that the
  // running step began with.
  Decided now_, previous_, terms_;
  std::int64_t uploaded_before_ = 0;  // Uploads::captured_bytes() when the running step began
  IdVector<StepGraph> graphs_;        // [program]
  bool captures_ = false;             // the running step
  bool gate_set_ = false;             // the device knows the running step's decision
  InstructionId decides_at_ = -1;     // the running program's reduce_scalars
  int carried_from_ = -1;
  Decision decision_;

  const int peak_program_;
  const InstructionId peak_instruction_;
  std::function<void()> peak_observer_;

  StepTrace trace_;
  IdVector<IdVector<const void*>> ranges_;  // [program][instruction]; empty without a profiler
  std::optional<device::Range> use_range_;  // of the open use

  std::optional<device::Uploads> uploads_;  // to the compute lane
  // On a GPU, of the threads that read beside steps.
  Arena beside_memory_;
  std::unique_ptr<Stream> beside_;
  mutable std::mutex beside_mutex_;  // several may read

  // Last: where a step failed, lanes may still run operations, which use all of the above, until they are
  // destroyed.
  IdArray<std::unique_ptr<Stream>, kLanes> lanes_;
};

}  // namespace tessera
