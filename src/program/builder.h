// Builds one program: buffers first (build_buffers.cpp), then instructions with their accesses
// (build_step.cpp). Lifetimes follow from the accesses and from the rules of each placement.
#pragma once

#include <span>
#include <vector>

#include "src/program/order.h"
#include "tessera/program.h"

namespace tessera {

class Builder {
 public:
  Builder(const Layout& layout, const Mesh& mesh, const StepSpec& spec);
  Program build();

 private:
  // A use at its place in the step: position k of all microbatches' uses.
  struct Slot {
    Use use;
    int microbatch = 0;
    bool first_of_microbatch = false;
    InstructionId instruction = -1;
  };
  // Uses first..last (positions) between which a flat's gathered parameters stay.
  struct Residence {
    FlatId flat = 0;
    int first = 0;
    int last = 0;
    int earliest = 0;  // the gather may be issued just before the use at this position, no sooner
    InstructionId gather = -1;
  };

  bool train() const { return spec_.kind == StepKind::train; }
  bool parameters_sharded() const { return placements_.parameters == Placement::sharded; }
  bool gradients_sharded() const { return placements_.gradients == Placement::sharded; }
  bool state_sharded() const { return placements_.optimizer_state == Placement::sharded; }
  // A rank without peers has nothing to add to the gradient of its only microbatch: that is the reduced one.
  bool nothing_to_add() const { return layout_.shards() == 1 && spec_.microbatches == 1; }
  bool trains(FlatId flat) const { return train() && layout_.flat(flat).trainable; }
  bool resident(UnitId unit) const;
  // The flats whose parameters the use reads.
  std::span<const FlatId> read_by(const Use& use) const;

  // build_buffers.cpp
  BufferId add_buffer(Buffer buffer);
  void add_flat_buffers(FlatId flat);
  void add_unit_buffers(UnitId unit);
  void add_scalars();

  // build_step.cpp
  void lay_out_uses();
  void find_residences();
  bool stays(FlatId flat, int from, int to) const;
  InstructionId add(Instruction instruction);
  int channel(Lane lane);
  Instruction about(Opcode op, Lane lane, FlatId flat) const;

  void issue_gathers(int position);
  void issue_use(int position);
  void issue_reductions(int position);
  void reduce(FlatId flat, int microbatch, BufferId from, bool accumulate);
  void after_last_reduction(FlatId flat);
  void issue_end();

  void access_parameters(const Use& of, Instruction& use);
  void access_gradients(Instruction& use, int position);
  void access_activations(Instruction& use, int position);
  void touch(BufferId buffer, InstructionId instruction);
  void begin(BufferId buffer, InstructionId instruction);
  void release_behind(BufferId buffer, InstructionId instruction, int position);
  void close_lifetimes();

  Buffer& buffer(BufferId id) { return program_.buffers[static_cast<std::size_t>(id)]; }

  const Layout& layout_;
  const StepSpec& spec_;
  Placements placements_;  // replicated where there is one shard
  ReduceWhen reduce_when_;
  Program program_;
  std::vector<Slot> slots_;
  std::vector<Residence> residences_;                 // by first use
  std::vector<std::vector<int>> backward_positions_;  // [flat]: positions of uses that write its gradient
  // Lifetimes that end at the use of a later position, whose instruction does not exist yet.
  struct PendingEnd {
    BufferId buffer;
    InstructionId at_least;
    int position;
  };
  std::vector<PendingEnd> pending_ends_;
};

}  // namespace tessera
