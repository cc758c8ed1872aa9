// Builds one program: buffers first (buffers.cpp), then instructions with their operands (step.cpp;
// activations.cpp has what modules keep, gathers.cpp, messages.cpp and reductions.cpp what communicates,
// offload.cpp copies and updates). Lifetimes follow from the operands and from the rules of each placement.
// Which buffers a flat and a unit have is known here only.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "src/build/order.h"
#include "tessera/pipeline.h"
#include "tessera/program.h"
#include "tessera/step_spec.h"

namespace tessera {

// A buffer for every microbatch. Builder::compact() lets those that are never there together share one.
struct PerMicrobatch {
  IdVector<BufferId> buffers;  // none where nothing has to be kept
  bool empty() const { return buffers.empty(); }
  // −1 where there is none.
  BufferId of(int microbatch) const { return empty() ? -1 : buffers[microbatch]; }
};

// A sum that goes on, and where it waits on the host meanwhile, −1: nowhere.
struct WaitingSum {
  BufferId device = -1, host = -1;
};

// The buffers of one flat; −1 where it has none.
struct FlatBuffers {
  BufferId parameter = -1;
  BufferId on_device = -1;  // the parameter's part there: `parameter`, or what is uploaded of it
  BufferId on_host = -1;    // the same on the host, where it ever comes there
  BufferId secondary = -1;  // where replicas keep slices of the shard between steps
  BufferId gathered = -1;   // equals `parameter` where parameters are replicated
  BufferId gradient = -1;
  BufferId local_sum = -1;
  BufferId accumulator = -1;
  BufferId reduced = -1;  // the sum over all ranks: `accumulator`, or `gradient` where nothing is added
  // Sums of this rank's blocks wait here for others before they are added to the accumulator; and so do, of
  // what pairs of replicas have made, this rank's slices. Both are by depth in the tree.
  IdVector<WaitingSum> block_sums;
  IdVector<BufferId> replica_sums;
  BufferId tied_sum = -1;  // where pipeline ranks that share the flat add up their gradients
  BufferId master = -1;    // equals `parameter` for fp32 parameters
  IdArray<BufferId, 2> moments = {-1, -1};
  BufferId host_gradient = -1;
  // What the update touches where it runs; its master is its parameter where that is fp32.
  struct {
    BufferId gradient = -1;
    BufferId master = -1;
    IdArray<BufferId, 2> moments = {-1, -1};
    BufferId parameter = -1;
  } update;
};

// The activation buffers of one unit; empty, or −1, where it has none on this pipeline rank. The rank that
// runs a chunk has the output, and the gradient of it, of the unit before the chunk's first, too.
struct UnitBuffers {
  PerMicrobatch output;
  PerMicrobatch output_gradient;
  IdVector<PerMicrobatch> values;  // [value] of those that are over no other
  // Where they leave the device: what the unit saved, and its input, which is the output of the unit before.
  IdVector<PerMicrobatch> values_on_host;  // [value]
  PerMicrobatch input_on_host;
  std::map<std::int64_t, BufferId> workspaces;  // by bytes
};

// Throws UsageError for a strategy that means nothing, by itself or on this mesh.
void check_strategy(const Mesh& mesh, const Strategy& strategy);
// The same of a step, and of a layout for it.
void check_spec(const Layout& layout, const Mesh& mesh, const StepSpec& spec);

class Builder {
 public:
  Builder(const Layout& layout, const Mesh& mesh, const StepSpec& spec, int pipeline_rank, int data_rank);
  Program build();

 private:
  // A use at its place in the step: position k of all microbatches' uses.
  struct Slot {
    Use use;
    int microbatch = 0;
    int time = 0;              // when its pass starts, see PassTimes
    InstructionId begin = -1;  // the first that is issued at its position
    bool brought = false;      // what the use needs of what waited on the host has been asked for
    InstructionId instruction = -1;
    int exchanged_ahead = 0;  // so many of its steps, from the first, were issued with the use before
  };
  // Uses first..last (positions) between which a flat's gathered parameters stay. Nothing gives them up: the
  // last use is the last to touch them, so that their lifetime ends there.
  struct Residence {
    FlatId flat = 0;
    int first = 0;
    int last = 0;
    int earliest = 0;  // the gather may be issued just before the use at this position, no sooner
    InstructionId gather = -1;
  };

  // What another pipeline rank sends to a chunk of this one.
  struct Incoming {
    Lane lane = Lane::receive_output;
    int from = 0;
    UnitId unit = 0;  // whose output, or gradient of it, this is
    int microbatch = 0;
    int made = 0;  // when, see PassTimes
  };

  // The update of a flat, issued behind the use at a position; as many as there are uses: behind all of them.
  // A carried one is issued ahead of the use there.
  struct Update {
    FlatId flat = 0;
    int behind = 0;
  };

  bool train() const { return spec_.kind != StepKind::evaluate; }
  bool parameters_sharded() const { return spreads_.parameters != kWhole; }
  bool gradients_sharded() const { return spreads_.gradients != kWhole; }
  // Whether each shard of the states is another rank's, whatever replicas do.
  bool state_sharded() const {
    return mesh_.shard > 1 && spec_.strategy.placements.optimizer_state == Placement::sharded;
  }
  bool pipelined() const { return mesh_.pipeline > 1; }
  // Whether this rank has no such microbatch. Its positions stay in the step: collectives are placed by them.
  bool rests_in(int microbatch) const { return program_.rests && microbatch == spec_.microbatches - 1; }
  PipelineShape shape() const { return {mesh_.pipeline, spec_.strategy.pipeline.chunks, spec_.microbatches}; }
  // The blocks of microbatches whose sum this rank's replica makes.
  int blocks_here() const { return rounds_.blocks > 1 ? rounds_.blocks / mesh_.replicate : 1; }
  // A rank without peers has nothing to add to the gradient of its only microbatch: that is the reduced one.
  bool nothing_to_add(FlatId flat) const {
    return mesh_.shard == 1 && mesh_.replicate == 1 && spec_.microbatches == 1 && !shared(flat) &&
           !summed_over_tensor(flat);
  }
  // Whether tensor ranks have copies of the flat, and whether each then has a part of its gradient only.
  bool copied_over_tensor(FlatId flat) const {
    return mesh_.tensor > 1 && layout_.flat(flat).over != TensorShare::cut;
  }
  bool summed_over_tensor(FlatId flat) const {
    return mesh_.tensor > 1 && layout_.flat(flat).over == TensorShare::partial;
  }
  bool mine(UnitId unit) const { return partition_.rank_of(unit) == pipeline_rank_; }
  // The pipeline ranks that use the flat: its home first, then the others, ascending.
  const std::vector<int>& holders(FlatId flat) const { return holders_[flat]; }
  bool held(FlatId flat) const {
    return std::ranges::find(holders(flat), pipeline_rank_) != holders(flat).end();
  }
  bool shared(FlatId flat) const { return holders(flat).size() > 1; }
  const Offload& offload() const { return spec_.strategy.offload; }
  // Whether flats are brought for a use and given back behind it.
  bool parameters_come_and_go() const {
    return parameters_sharded() || offload().parameters != Space::device;
  }
  // Whether what is added belongs to the updates that the step before left.
  bool carrying() const { return when_ >= 0 && when_ == previous_; }
  bool updates_early() const { return spec_.strategy.update == UpdateWhen::reduced; }
  // Whether the flat's update is the next step's.
  bool carries(FlatId flat) const { return spec_.strategy.update == UpdateWhen::next && host_updates(flat); }
  // Where the flat's master and moments are.
  Space state_space(FlatId flat) const;
  bool host_updates(FlatId flat) const { return state_space(flat) != Space::device; }
  bool state_over_replicas() const { return spreads_.states == kSlice; }
  bool parameters_over_replicas() const { return spreads_.parameters == kSlice; }
  bool trains(FlatId flat) const { return train() && layout_.flat(flat).trainable && held(flat); }
  // Each gradient counts once in the norm, where several pipeline ranks hold it.
  bool squares(FlatId flat) const { return trains(flat) && holders(flat).front() == pipeline_rank_; }
  bool resident(UnitId unit) const;
  // The flats whose parameters the use reads.
  std::span<const FlatId> read_by(const Use& use) const;
  bool reads_batch(UnitId unit) const;
  bool has_activations() const { return !spec_.activations.units.empty(); }
  const UnitGraph& graph(UnitId unit) const {
    return split_graphs_.empty() ? spec_.activations.units[unit] : split_graphs_[unit];
  }
  // The pass in which the unit's gradients are written.
  Pass gradient_pass(UnitId unit) const {
    return has_activations() && graph(unit).is_split ? Pass::weight_gradient : Pass::backward;
  }
  const ActivationChoice& choice_of(UnitId unit) const { return choices_[unit]; }

  // buffers.cpp
  BufferId add_buffer(Buffer buffer);
  void add_flat_buffers(FlatId flat);
  void add_state_buffers(FlatId flat);
  void add_gradient_buffers(FlatId flat);
  void name_by_bytes(BufferId id);
  BufferId add_flat_buffer(FlatId flat, Buffer like, DType type);
  void add_unit_buffers(UnitId unit);
  PerMicrobatch add_per_microbatch(const Buffer& like);
  void add_scalars();
  void add_decisions();
  void add_batch();
  void compact();
  void forget_unused();
  void rename(const IdVector<BufferId>& kept);

  // step.cpp
  void find_times();
  void lay_out_uses();
  void lay_out_passes();
  std::vector<Use> uses_in(int chunk, Pass pass) const;
  void lay_out_order();
  void lay_out_updates();
  int carried_place(int first_use) const;
  InstructionId add(Instruction instruction);
  InstructionId next_id() const { return program_.instructions.count(); }
  int channel(Lane lane, Axis axis = Axis::shard);
  Instruction about(Opcode op, Lane lane, FlatId flat) const;
  // All of a buffer, and of one that is of a flat what `spread` says of it.
  Operand whole(Role role, BufferId buffer, Access access) const;
  Operand part(Role role, BufferId buffer, const Spread& spread, Access access) const;
  void issue_use(int position);
  std::size_t hands_on_at(int position) const;
  void exchange_ahead(Slot& slot);
  Instruction part_of_use(const Slot& slot, int part) const;
  void access_parameters(const Use& of, Instruction& use);
  void access_gradients(Instruction& use, int position);
  void begin_gradients(int position);
  bool first_of_microbatch(FlatId flat, int position) const;
  void begin(BufferId buffer, InstructionId instruction);
  void touch(BufferId buffer, InstructionId instruction);
  void release_behind(BufferId buffer, InstructionId instruction, int position);
  void close_lifetimes();

  // gathers.cpp: how early parameters are gathered, and how long they stay
  void find_residences();
  bool stays(FlatId flat, int from, int to, int in_flight) const;
  void issue_gathers(int position);
  bool brought_since(BufferId id, InstructionId first);
  BufferId shard_to_gather(FlatId flat, int microbatch);

  // reductions.cpp: from gradients to what an update reads
  //
  // BlockPart is what a round of microbatches adds to one of this rank's blocks.
  struct BlockPart {
    int block = 0;
    Contributors of = {};  // along the shard axis
    bool begins = false, ends = false;
  };
  std::vector<BlockPart> parts_of(int microbatch) const;
  void issue_reductions(int position);
  WaitingSum sum_at(FlatId flat, int depth) const;
  void add_to_block(FlatId flat, int position, const BlockPart& more, BufferId from, std::vector<int>& here);
  void reduce(FlatId flat, int microbatch, const Contributors& of, BufferId from, BufferId to,
              bool accumulate);
  void accumulate(Lane lane, FlatId flat, int microbatch, const Operand& from, const Operand& to);
  void reduce_over_replicas(FlatId flat);
  void reduce_over_tensor(FlatId flat);
  void after_last_reduction(FlatId flat);
  void take_squares(FlatId flat);
  void put_squares(Instruction& into, FlatId flat) const;
  void square_and_gather(FlatId flat);
  void gather_in_place(FlatId flat, BufferId buffer, Axis axis);
  void issue_end();

  // offload.cpp: what lives off the device, and the update
  InstructionId copy(Instruction like, BufferId from, BufferId to);
  InstructionId copy(FlatId flat, int microbatch, BufferId from, BufferId to);
  BufferId part_on_host(FlatId flat, int microbatch);
  BufferId part_on_device(FlatId flat, int microbatch);
  void take_down(FlatId flat);
  void prepare_updates();
  void issue_carried(int position);
  Program build_finish();
  void hand_on_next();
  void issue_updates(int position);
  void decide();
  std::vector<std::pair<BufferId, BufferId>> windows_of(FlatId flat) const;
  void bring_states(FlatId flat);
  void bring_parameter(FlatId flat);
  void issue_update(FlatId flat);
  void hand_on(FlatId flat);

  // activations.cpp
  //
  // Throws UsageError where the schedule splits backwards and no unit's can be.
  static IdVector<UnitGraph> split_graphs(const Mesh& mesh, const StepSpec& spec);
  void exchange(const Slot& slot, ValueId value);
  bool writes_first(UnitId unit, Pass pass, const GraphStep& here, ValueId value) const;
  Region region_of(UnitId unit, ValueId value) const;
  void access_activations(Instruction& use);
  void keep_until_exchanged(const Instruction& reader, ValueId read);
  BufferId buffer_of(UnitId unit, ValueId value, int microbatch) const;
  bool leaves_device(UnitId unit) const;
  // A buffer on the device, and the one on the host where its contents wait.
  struct Waiting {
    BufferId device, host;
  };
  std::vector<Waiting> waiting_of(const Slot& slot) const;
  void bring_activations(int position);
  void take_down_activations(int position);

  // messages.cpp: what pipeline ranks send each other
  void find_messages();
  // Whether the backward of the unit makes the gradient of its input.
  bool hands_back(UnitId unit) const;
  void issue_receives(int position);
  void issue_sends(int position);
  void keep_until_taken(BufferId buffer, InstructionId send, Lane lane, int taken);
  InstructionId add_message(Instruction message, int peer);
  void exchange_shared();

  Buffer& buffer(BufferId id) { return program_.buffers[id]; }
  const Buffer& buffer(BufferId id) const { return program_.buffers[id]; }

  const Layout& layout_;
  const Mesh mesh_;
  const StepSpec& spec_;
  const IdVector<UnitGraph> split_graphs_;  // by unit; empty where the schedule runs backwards whole
  const int pipeline_rank_;
  const Rounds rounds_;
  Partition partition_;
  IdVector<std::vector<int>> holders_;  // by flat
  const Spreads spreads_;
  ReduceWhen reduce_when_;
  Program program_;
  IdVector<FlatBuffers> flat_buffers_;
  IdVector<UnitBuffers> unit_buffers_;
  IdVector<IdArray<std::vector<GraphStep>, kPasses>> graph_steps_;  // [unit][pass]; part −1: none is declared
  IdVector<ActivationChoice> choices_;                              // by unit
  IdVector<bool> exchanges_;  // by unit: whether an exchange makes a value of it
  PerMicrobatch batch_;
  BufferId decision_ = -1, previous_ = -1, terms_ = -1;  // what instructions depend on; −1: none does
  BufferId when_ = -1;                                   // of what is added now
  IdVector<Slot> slots_;
  IdVector<Residence> residences_;                 // by first use
  std::size_t gathered_ = 0;                       // of these, the first so many are gathered
  std::vector<Incoming> incoming_;                 // in the order in which they are made
  std::size_t received_ = 0;                       // of these, the first so many are received
  IdVector<std::vector<int>> backward_positions_;  // [flat]: positions of uses that write its gradient
  IdVector<bool> written_;         // [parameter] whether any use of this program writes its gradient
  IdVector<bool> holds_gradient_;  // [parameter] whether a use of this microbatch has written it
  PassTimes times_;
  IdVector<std::vector<int>> starts_;  // [pipeline rank]: the same, ascending
  std::map<Lane, int> taken_;          // by lane: when all sent so far will have been taken
  // Lifetimes that end at a later position, whose instructions do not exist yet: with the use there, or with
  // all that is issued behind it.
  struct PendingEnd {
    BufferId buffer;
    InstructionId at_least;
    int position;
    bool behind_all = false;
  };
  std::vector<PendingEnd> pending_ends_;
  std::vector<Update> updates_;   // in order of issue
  std::size_t prepared_ = 0;      // of them: what they read of states has been asked for
  std::size_t updated_ = 0;       // and these are issued
  std::size_t handed_on_ = 0;     // and what they made has gone on
  std::size_t carried_ = 0;       // of updates_, the first so many are of the step before
  IdVector<bool> has_secondary_;  // by flat: gathered over the replicas in this step
  InstructionId end_begin_ = -1;  // the first behind all uses
};

}  // namespace tessera
