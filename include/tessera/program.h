// A step as plain data: the instructions one rank runs, in order, and the buffers they touch. Built before
// the first step; read by the executor, planner, verifier, simulator and tracer. Touches no memory or device.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/category.h"
#include "tessera/exact_sum.h"
#include "tessera/id_vector.h"
#include "tessera/layout.h"
#include "tessera/mesh.h"
#include "tessera/operand.h"
#include "tessera/pass.h"
#include "tessera/space.h"
#include "tessera/strategy.h"
#include "tessera/use.h"

namespace tessera {

// An ordered queue. Instructions of one lane run one after the other, in order of issue.
// Exchanges of values between tensor ranks have one. Messages between pipeline ranks have a lane for each way
// and direction, so that none waits behind another.
enum class Lane : std::uint8_t {
  compute,
  gather,
  reduce,
  send_output,
  send_gradient,
  receive_output,
  receive_gradient,
  upload,
  download,
  host,
  io,
  exchange
};
inline constexpr int kLanes = 12;

enum class Opcode : std::uint8_t {
  use,         // the module of `unit` runs `part` of `pass`, or all of it
  all_gather,  // the parts of a flat, or of a unit's value, that the ranks of the group have -> what these
               // make together
  reduce_scatter,  // a flat, a part of it or a unit's value, summed over contributing ranks in their order ->
                   // each rank's part
  accumulate,      // a flat, or a part of it, is added to a sum on this rank
  square_sum,      // the squares of this rank's part of a reduced gradient are added to a sum, finite or not
  zero,            // the parts of a gradient that no use writes, or all of it (StepSpec::zero_gradients)
  send,            // a buffer, or this rank's part of a flat -> `peer`
  receive,         // the same from `peer`
  reduce_scalars,  // loss, weight and square sums of all ranks; the decision to apply or skip
  update,          // the optimizer, on this rank's part or on everything
  copy,            // what a buffer holds -> another space: all of it, or the part that both have
};
inline constexpr int kOpcodes = 11;

std::string_view name_of(Lane lane);
std::string_view name_of(Opcode opcode);

// An instruction is complete: its operands, found by role, and `when` are all that it touches.
struct Instruction {
  Opcode op = Opcode::use;
  Lane lane = Lane::compute;
  Pass pass = Pass::forward;
  UseEdge edge = UseEdge::whole;
  UnitId unit = -1;
  int part = -1;        // of a use: place in UnitGraph::parts; −1: the unit declares none
  int microbatch = -1;  // −1: it belongs to no microbatch, as an update
  int channel = -1;     // for collectives and messages: index into Program::channels
  int peer = -1;        // for messages: the other rank's place along the channel's axis
  // For reduce_scatter: the ranks of the group that contribute. Others give nothing, even where they have an
  // operand `from`; where they have none, `wire` is the type in which the others' contributions travel.
  Contributors contributors = {};
  DType wire = DType::fp32;
  // The decision that it depends on, −1: none. Where that says no, the instruction does nothing on any rank,
  // but keeps its place, waits and lifetimes. An update also takes its learning rate, step and scale from it.
  BufferId when = -1;
  std::vector<Operand> operands;
  std::vector<InstructionId> waits;  // on other lanes; ascending, and none that others imply

  // The first operand of that role; nullptr where there is none.
  const Operand* find(Role role) const {
    for (const Operand& operand : operands)
      if (operand.role == role) return &operand;
    return nullptr;
  }
  // The same, of an instruction that must have it: throws Error otherwise.
  const Operand& operand(Role role) const {
    const Operand* found = find(role);
    if (found == nullptr) refuse(role);
    return *found;
  }
  // The type of what a reduce_scatter adds up, here or on other ranks.
  DType wire_type() const {
    const Operand* from = find(Role::from);
    return from == nullptr ? wire : from->type;
  }
  // −1 where there is none.
  BufferId buffer(Role role) const {
    const Operand* found = find(role);
    return found == nullptr ? -1 : found->buffer;
  }
  // The buffers that it reads, `when` among them, and those that it writes: ascending, each once. A buffer
  // that is added to, or changed in place, is in both.
  std::vector<BufferId> reads() const;
  std::vector<BufferId> writes() const;
  bool touches(BufferId buffer) const;
  bool operator==(const Instruction&) const = default;

 private:
  [[noreturn]] void refuse(Role role) const;
};

// A buffer holds something between the issue of instruction `first` and the end of instruction `last`.
// The first access in a lifetime writes. `last` may lie behind the last access: the place where the memory
// may be given to another, which is what lets a reduction run behind later compute.
struct Lifetime {
  InstructionId first = 0;
  InstructionId last = 0;
  bool operator==(const Lifetime&) const = default;
};

enum class BufferRole : std::uint8_t {
  parameter,          // a flat's shard, or the whole of it where parameters are replicated
  uploaded,           // a parameter that lives off the device, brought to it for a gather or an update
  staged,             // on the host: parameters on their way, or those that the host's update makes
  secondary,          // a flat's shard, gathered from the slices that replicas keep
  gathered,           // a flat's parameters, whole, around a use
  gradient,           // a flat's full gradient of one microbatch, in the parameter's type
  local_sum,          // a flat's full fp32 gradient, summed over microbatches on this rank only
  accumulator,        // a flat's reduced fp32 gradient: the shard, or the whole, see docs/memory.md
  block_sum,          // a shard of it, of blocks of microbatches that wait for others (Strategy::blocks)
  replica_sum,        // a replica's slice of it, of replicas that wait for others
  master,             // fp32 parameters behind 16-bit ones: the shard, or the whole
  moment,             // optimizer moment `index`: the shard, or the whole
  host_gradient,      // on the host: the reduced gradient, or its sum so far; `index` as of block_sum
  state_window,       // master (index −1) or moment `index`, on the host, of states on the disk
  tied_sum,           // another pipeline rank's slice of a tied flat's reduced gradient
  batch,              // the microbatch's inputs and targets
  output,             // what unit `unit` hands to the next, here or received from the unit's rank
  output_gradient,    // the gradient of that, written by the next unit's backward, here or received
  value,              // value `index` of unit `unit`, and those that are over it (UnitGraph)
  offloaded,          // on the host: value `index` of unit `unit`, or its input (SharedValue::input)
  workspace,          // scratch of unit `unit` during a use
  scalars,            // one slot a rank for reduce_scalars
  decision,           // whether this step's updates run, and with which terms
  previous_decision,  // the same of the step before, for the updates that it left to this one
  terms,              // this step's terms, given when it began, for updates that wait for no decision
  cache               // value `index` of unit `unit` that stays from evaluation to evaluation (Keep::cached)
};
inline constexpr int kBufferRoles = 26;

std::string_view name_of(BufferRole role);

// Whether instructions can depend on it (Instruction::when).
constexpr bool is_decision(BufferRole role) {
  return role == BufferRole::decision || role == BufferRole::previous_decision || role == BufferRole::terms;
}

struct Buffer {
  std::string name;  // equal names in several programs of a trainer are one buffer
  BufferRole role = BufferRole::parameter;
  Category category = Category::parameters;
  Space space = Space::device;
  UnitId unit = -1;
  FlatId flat = -1;
  Spread spread = {};        // which elements of its flat it holds
  DType type = DType::fp32;  // the type of these elements
  int index = 0;
  std::int64_t bytes = 0;
  bool persistent = false;   // lives through and between all steps, at one address; `lifetimes` is then empty
  bool one_address = false;  // all its lifetimes, in all programs, lie at one address
  std::vector<Lifetime> lifetimes;  // ascending, disjoint
  bool operator==(const Buffer&) const = default;
};

// Which of the buffer's lifetimes holds instruction `at`: 0 for a persistent buffer, −1 where it is not
// alive.
int lifetime_at(const Buffer& buffer, InstructionId at);

// A communicator of the program: the group along `axis`, used by one lane only.
struct Channel {
  Axis axis = Axis::shard;
  Lane lane = Lane::compute;
  bool operator==(const Channel&) const = default;
};

// A value that an exchange makes, and of which (ValueSpec::exchanged).
struct ExchangedValue {
  ValueId value = kNoValue;
  ValueId of = kNoValue;
  bool operator==(const ExchangedValue&) const = default;
};

// A value that is those bytes of another (ValueSpec::piece_of).
struct ValuePiece {
  ValueId value = kNoValue;
  ValueId of = kNoValue;
  std::int64_t begin = 0, end = 0;
  bool operator==(const ValuePiece&) const = default;
};

// What messages say of a unit, and what its exchanges and pieces of values must be.
struct UnitOutline {
  std::string name;
  IdVector<std::string> parts = {};  // none where the unit declares none
  std::vector<ExchangedValue> exchanged = {};
  std::vector<ValuePiece> pieces = {};
  // Nullptr where the value is no piece.
  const ValuePiece* piece(ValueId value) const;
  bool operator==(const UnitOutline&) const = default;
};

struct Program {
  StepKind kind = StepKind::train;
  int microbatches = 1;      // rounds of them, see Rounds
  int last_round_ranks = 0;  // ranks along the shard axis that have one in the last round; 0: all
  int blocks = 1;            // of microbatches, whose sums are added as a tree, see Rounds
  bool rests = false;        // whether it is for a rank that has none there
  int own_microbatches() const { return microbatches - (rests ? 1 : 0); }
  int pipeline_rank = 0;  // the coordinate along the pipeline axis that it is for
  IdVector<UnitOutline> units;
  IdVector<Channel> channels;
  IdVector<Buffer> buffers;
  IdVector<Instruction> instructions;
  BufferId scalars = -1;
  int scalars_numel = 0;  // float64 values in one rank's slot

  Rounds rounds() const { return {.count = microbatches, .last_ranks = last_round_ranks, .blocks = blocks}; }
  const Instruction& at(InstructionId id) const { return instructions[id]; }
  // The flat that the instruction is about: that of every operand that belongs to a flat. −1: none, and for a
  // use.
  FlatId flat_of(const Instruction& instruction) const;
  // The flat's persistent buffer of that role, and `index` among moments; −1 where this rank has none.
  BufferId persistent(FlatId flat, BufferRole role, int index = 0) const;
  // Whether the instruction depends on the decision of the step before.
  bool is_carried(const Instruction& instruction) const {
    return instruction.when >= 0 && buffers[instruction.when].role == BufferRole::previous_decision;
  }

  // Equal on all ranks that run the same program; covers every field that the run depends on.
  std::uint64_t hash() const;
  bool operator==(const Program&) const = default;
};

// A buffer among those of several programs.
struct BufferOf {
  int program = 0;
  BufferId buffer = 0;
};

// The persistent buffers of a trainer's programs, each name once, where it comes first.
std::vector<BufferOf> persistent_buffers(IdSpan<const Program> programs);

// "#12 backward of block.3, microbatch 0", for messages and timelines.
std::string describe(const Program& program, InstructionId id);

// A rank's slot of the scalars: float64 values that the ranks exchange once a step. kLossSlot values (the
// host's loss and weight, and what all ranks must agree on), then the bits of a LossSum, of what was added on
// the device, and of a SquareSum: of this rank's slices of all
// reduced gradients, whose elements are counted through all flats. Then, where asked for, one for each
// parameter.
inline constexpr int kLossSlot = 8;
inline constexpr int kLossSlots = static_cast<int>(sizeof(LossSum) / sizeof(double));
inline constexpr int kSquareSlots = static_cast<int>(sizeof(SquareSum) / sizeof(double));
inline constexpr ParameterId kAllParameters = -1;
constexpr int square_sum_slot(ParameterId parameter) {
  return kLossSlot + kLossSlots + kSquareSlots * (parameter + 1);
}

// A decision on the device: whether updates run there, and the gradient's scale.
inline constexpr std::int64_t kDecisionBytes = 256;

}  // namespace tessera
