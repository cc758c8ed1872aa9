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
#include "tessera/layout.h"
#include "tessera/mesh.h"
#include "tessera/pass.h"
#include "tessera/space.h"
#include "tessera/strategy.h"

namespace tessera {

using BufferId = int;
using InstructionId = int;  // position in Program::instructions, the order of issue

// An ordered queue. Instructions of one lane run one after the other, in order of issue.
// Messages between pipeline ranks have a lane for each way and direction, so that none waits behind another.
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
  io
};
inline constexpr int kLanes = 11;

enum class Opcode : std::uint8_t {
  use,             // the module of `unit` runs `pass`                                        (compute)
  all_gather,      // a flat's shards -> its full parameters or full gradients                (gather)
  reduce_scatter,  // full gradients of all ranks -> this rank's slice, in rank order         (reduce)
  accumulate,      // a microbatch's full gradient -> the local fp32 sum; or another pipeline
                   // rank's slice of a tied flat's gradient -> this rank's                    (compute)
  square_sum,      // squares of this rank's slice of the reduced gradient, finite or not, where no
                   // reduce_scatter has taken them                                            (reduce)
  send,            // a buffer, or this rank's slice of a flat's reduced gradient -> `peer`    (send_*)
  receive,         // the same from `peer`                                                    (receive_*)
  reduce_scalars,  // loss, weight, square sums of all ranks; the decision to apply or skip   (compute)
  update,          // the optimizer, on this rank's slice or on everything              (compute, host)
  copy,            // what a buffer holds -> another space: all of it, or the part of a flat that
                   // both have                                          (upload, download, io)
};

// A use is one instruction, unless other uses run inside it; then it is an opening and a closing one.
enum class UseEdge : std::uint8_t { whole, open, close };

std::string_view name_of(Lane lane);
std::string_view name_of(Opcode opcode);

struct Instruction {
  Opcode op = Opcode::use;
  Lane lane = Lane::compute;
  Pass pass = Pass::forward;
  UseEdge edge = UseEdge::whole;
  UnitId unit = -1;
  FlatId flat = -1;         // for all but use, reduce_scalars, and messages and copies of activations
  int microbatch = -1;      // −1 after the last microbatch
  int channel = -1;         // for collectives and messages: index into Program::channels
  int peer = -1;            // for messages: the other rank's place along the channel's axis
  bool selective = false;   // a recompute: of what is recomputable, from what is saved
  bool accumulate = false;  // reduce_scatter, accumulate: continues from what the destination holds
  bool squares = false;     // reduce_scatter: completes the gradient, and does what square_sum would
  bool carried = false;     // of the update that the step before left: does nothing where that left none
  std::vector<InstructionId> waits;  // on other lanes; ascending, and none that others imply
  std::vector<BufferId> reads;       // ascending
  std::vector<BufferId> writes;      // ascending; a buffer that is updated in place is in both
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
  parameter,        // a flat's shard, or the whole of it where parameters are replicated
  uploaded,         // on the device, for a gather or an update, of a parameter that lives elsewhere
  staged,           // a flat's parameters, or the part that is updated, on the host on their way
  secondary,        // a flat's shard, gathered from the slices that replicas keep
  gathered,         // a flat's parameters, whole, around a use
  gradient,         // a flat's full gradient of one microbatch, in the parameter's type
  local_sum,        // a flat's full fp32 gradient, summed over microbatches on this rank only
  accumulator,      // a flat's reduced fp32 gradient: the shard, or the whole, see docs/memory.md
  master,           // fp32 parameters behind 16-bit ones: the shard, or the whole
  moment,           // optimizer moment `index`: the shard, or the whole
  host_gradient,    // the reduced gradient on the host
  state_window,     // master (index −1) or moment `index`, on the host, of states on the disk
  tied_sum,         // another pipeline rank's slice of a tied flat's reduced gradient
  batch,            // the microbatch's inputs and targets
  output,           // what unit `unit` hands to the next, here or received from the unit's rank
  output_gradient,  // the gradient of that, written by the next unit's backward, here or received
  saved,            // what unit `unit` keeps from forward, or a full recompute, to backward
  offloaded,        // on the host: what unit `unit` saved (index 0), its input (1)
  recomputable,     // what it keeps from forward, or any recompute, to backward
  workspace,        // scratch of unit `unit` during a use
  square_sums,      // of the blocks of one flat's reduced gradient, on their way to its norm
  scalars           // one slot a rank for reduce_scalars; behind them, what they decide
};

// Which elements of its flat a buffer holds. All of what is of no flat.
enum class Part : std::uint8_t { all, shard, slice };
inline std::int64_t numel_of(const Flat& flat, Part part) {
  return part == Part::all ? flat.padded_numel : part == Part::shard ? flat.shard_numel : flat.slice_numel;
}

struct Buffer {
  std::string name;  // equal names in several programs of a trainer are one buffer
  BufferRole role = BufferRole::parameter;
  Category category = Category::parameters;
  Space space = Space::device;
  Part part = Part::all;
  UnitId unit = -1;
  FlatId flat = -1;
  int index = 0;
  std::int64_t bytes = 0;
  bool persistent = false;   // lives through and between all steps, at one address; `lifetimes` is then empty
  bool one_address = false;  // all its lifetimes, in all programs; else each may have its own
  std::vector<Lifetime> lifetimes;  // ascending, disjoint
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

// Buffers of which there is one for every microbatch that is between its forward and its backward; microbatch
// m has the one at m mod their count.
struct PerMicrobatch {
  std::vector<BufferId> buffers;  // none where nothing has to be kept
  bool empty() const { return buffers.empty(); }
  // −1 where there is none.
  BufferId of(int microbatch) const {
    return buffers.empty() ? -1 : buffers[static_cast<std::size_t>(microbatch) % buffers.size()];
  }
};

// What an update touches, where it runs; −1 where there is none. The master is the parameter where that is
// fp32.
struct UpdateBuffers {
  BufferId gradient = -1;
  BufferId master = -1;
  std::array<BufferId, 2> moments = {-1, -1};
  BufferId parameter = -1;
};

// The buffers of one flat; −1 where a flat has none, all of them where this pipeline rank does not use it.
struct FlatBuffers {
  BufferId parameter = -1;
  BufferId on_device = -1;  // the parameter's part there: `parameter`, or what is uploaded of it
  BufferId on_host = -1;    // the same on the host, where it ever comes there
  BufferId secondary = -1;  // where replicas keep slices of the shard between steps
  BufferId gathered = -1;   // equals `parameter` where parameters are replicated
  BufferId gradient = -1;
  BufferId local_sum = -1;
  BufferId accumulator = -1;
  BufferId reduced = -1;   // what the update reads: `accumulator`, or `gradient` where nothing is added
  BufferId tied_sum = -1;  // where pipeline ranks that share the flat add up their gradients
  BufferId master = -1;    // equals `parameter` for fp32 parameters
  std::array<BufferId, 2> moments = {-1, -1};
  BufferId host_gradient = -1;
  UpdateBuffers update;
};

// The activation buffers of one unit; empty, or −1, where it has none on this pipeline rank. The rank that
// runs a chunk has the output, and the gradient of it, of the unit before the chunk's first, too.
struct UnitBuffers {
  PerMicrobatch output;
  PerMicrobatch output_gradient;
  PerMicrobatch saved;
  PerMicrobatch recomputable;
  // Where they leave the device: what the unit saved, and its input, which is the output of the unit before.
  PerMicrobatch saved_on_host, input_on_host;
  BufferId workspace = -1;
};

struct Program {
  StepKind kind = StepKind::train;
  int microbatches = 1;
  int pipeline_rank = 0;                  // the coordinate along the pipeline axis that it is for
  Placements placements;                  // all replicated where there is one shard: it is the whole
  bool state_over_replicas = false;       // each replica has, and updates, its slice of a shard only
  bool parameters_over_replicas = false;  // and keeps no more of the parameters between steps
  std::vector<std::string> units;         // names, for messages
  std::vector<Channel> channels;
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;
  std::vector<FlatBuffers> flat_buffers;  // by FlatId
  std::vector<UnitBuffers> unit_buffers;  // by UnitId
  PerMicrobatch batch;
  BufferId square_sums = -1;  // −1 where this rank adds to no norm
  BufferId scalars = -1;
  int scalars_numel = 0;  // float64 values in one rank's slot

  // Equal on all ranks that run the same program; covers every field that the run depends on.
  std::uint64_t hash() const;
};

// A buffer among those of several programs.
struct BufferOf {
  int program = 0;
  BufferId buffer = 0;
};

// The persistent buffers of a trainer's programs, each name once, where it comes first.
std::vector<BufferOf> persistent_buffers(std::span<const Program> programs);

// "#12 backward of block.3, microbatch 0", for messages and timelines.
std::string describe(const Program& program, InstructionId id);

// A rank's slot of the scalars: float64 values that the ranks exchange once a step. kScalarHeader values
// (loss, weight and what all ranks must agree on), then for each flat a pair: the square sum of this rank's
// slice of the reduced gradient, and the place in that slice of its first non-finite element as the bits of
// an int64 (−1: none). Then, where asked for, such a pair for each parameter's part of the slice.
inline constexpr int kScalarHeader = 11;
constexpr int square_sum_slot(FlatId flat) { return kScalarHeader + 2 * flat; }
constexpr int parameter_square_sum_slot(int flats, ParameterId parameter) {
  return kScalarHeader + 2 * (flats + parameter);
}

// Behind all slots: whether updates on the device run, and the gradient's scale.
inline constexpr std::int64_t kDecisionBytes = 16;
constexpr std::int64_t slots_bytes(const Buffer& scalars) { return scalars.bytes - kDecisionBytes; }

}  // namespace tessera
