// What the compute of each unit keeps and needs, as the code that computes it declares it: values, and the
// parts that read and write them. Programs are built of it, and memory plans count its bytes. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dtype.h"
#include "tessera/id_vector.h"
#include "tessera/pass.h"
#include "tessera/strategy.h"
#include "tessera/value_id.h"

namespace tessera {

// How long a value is there.
enum class Keep : std::uint8_t {
  pass,          // from the part that writes it to the last that reads it in the same pass
  recomputable,  // from forward to backward. Cheap to make again: a selective recompute does so
  saved,         // from forward to backward; only a full recompute makes it again
  // From evaluation to evaluation, in one place for all programs whose units have a value of that name and
  // size. A part that writes some of it also reads it. The unit must be forward_only, and the program have
  // one microbatch.
  cached
};
std::string_view name_of(Keep keep);

// How the ranks along the tensor axis hold a value.
enum class Held : std::uint8_t {
  copied,  // the same on every rank
  split,   // each rank has an equal part
  partial  // each rank has a part of a sum that is still to be added
};
std::string_view name_of(Held held);

// Memory that parts of a unit write and read, of one microbatch on one rank.
struct ValueSpec {
  std::string name;        // within its unit
  std::int64_t bytes = 0;  // 0: it takes none, and has no address
  Keep keep = Keep::pass;
  // It is written over that earlier value, at the same address: no part reads that one any more.
  ValueId over = kNoValue;
  // Several parts of a pass write it: each a piece of its own, or a term that it adds.
  bool in_pieces = false;
  // Where no part is left that reads it, as by frozen parameters, it has no bytes.
  bool only_if_read = false;
  Held held = Held::copied;
  DType type = DType::fp32;  // of the elements of a partial value; their sum is fp32
  // It is made of that value, one of the unit's own or of SharedValue, by an exchange along the tensor axis,
  // in each pass that reads it. Of a split value comes a copied one: the ranks' parts, one behind the other
  // (all_gather). Of a partial value comes a split one: the sum, of which each rank has its part
  // (reduce_scatter). Such a value is there in its pass only, and no part writes it.
  ValueId exchanged = kNoValue;
  // It is a piece of that earlier value, one of the unit's own or of SharedValue: its bytes from `begin` on,
  // and no memory of its own. A part that touches it leaves the other pieces to others meanwhile. So the
  // ranks exchange one piece while a part computes with another. A value's pieces, in the order of their ids,
  // lie one behind the other and fill it; whoever touches all of the value touches all of them.
  ValueId piece_of = kNoValue;
  std::int64_t begin = 0;

  // Whether it is there from forward to backward, under that choice.
  bool is_kept(Recompute recompute) const;
};

// A piece of a unit's compute that runs without communication.
struct PartSpec {
  std::string name;  // within its unit and pass
  // In which pass it runs. A part whose pass is weight_gradient runs only where a schedule splits backward:
  // it writes gradients that a part of backward writes else, with the same bits. A recompute runs the parts
  // of forward again that write what was not kept. A part whose pass is recompute writes a value from less
  // than the part of forward that made it, with the same bits; it runs in place of that one where all that it
  // reads is there.
  Pass pass = Pass::forward;
  std::vector<ValueId> reads = {};
  std::vector<ValueId> writes = {};  // a value that is read, too, is changed in place
  // The parameters whose gradients it writes, by their places among the unit's; none given: all. Of several
  // parts that name one, each adds to what those before it have written. Backward only.
  std::optional<std::vector<int>> gradients = {};
  std::int64_t workspace_bytes = 0;  // scratch while it runs
  double flops = 0;  // multiplications and additions of its matrix products, for predictions of time
  bool evaluation_only = false;  // a training step does without it. Forward only

  bool reads_value(ValueId value) const;
  bool writes_value(ValueId value) const;
  // Whether it writes the gradient of the unit's parameter at that place.
  bool writes_gradient(int place) const;
};

// All zero where the trainer keeps its activations in memory of its own.
struct UnitActivations {
  std::int64_t output_bytes = 0;
  std::int64_t saved_bytes = 0;
  std::int64_t recomputable_bytes = 0;
  std::int64_t workspace_bytes = 0;  // the most that any pass needs while it runs
  bool reads_batch = true;           // some pass reads the microbatch
  // Backward can run as two passes, where a schedule splits it (PipelineSchedule::zb_h1). Pass::backward
  // makes the gradient of the input and leaves what was kept as it is, wherever it runs.
  // Pass::weight_gradient makes all gradients of parameters later, to the same bits. Parameters are not
  // gathered for it: what it needs of them, backward leaves in memory of the trainer's own.
  bool splits_backward = false;
};

// What a pass does next: it runs a part, or an exchange makes a value.
struct GraphStep {
  int part = -1;
  ValueId value = kNoValue;
  bool operator==(const GraphStep&) const = default;
};

// The values and parts of a unit. Each pass runs its parts in their order.
struct UnitGraph {
  UnitGraph() = default;
  // Declares a unit whose passes are one part each: everything saved is one value (kSaved), everything
  // recomputable another (kRecomputable), which backward may overwrite unless it can be split.
  UnitGraph(const UnitActivations& sizes);  // NOLINT: sizes are the short way to declare a unit
  static constexpr ValueId kSaved = 0, kRecomputable = 1;
  // Its parts. A full recompute runs kForward again, a selective one kAgain.
  // kWeightGradient is there where UnitActivations::splits_backward is true.
  static constexpr int kForward = 0, kAgain = 1, kBackward = 2, kWeightGradient = 3;

  std::int64_t output_bytes = 0;
  IdVector<ValueSpec> values;
  IdVector<PartSpec> parts;
  // Whoever computes the unit keeps more than these values, in memory of its own: a full recompute always
  // runs.
  bool keeps_more = false;
  bool is_split = false;      // by split_backward(): parts of Pass::weight_gradient run
  bool forward_only = false;  // it has no backward; a training step refuses it

  bool reads_batch() const;
  std::int64_t bytes(Keep keep) const;   // of all values that are kept so
  double flops(Pass pass) const;         // of all parts of that pass
  std::int64_t workspace_bytes() const;  // the most of any part
  // The value whose memory it takes, through all that lie between.
  ValueId root(ValueId value) const;
  // The value that it is made of, through all exchanges, which a part of the unit or another unit writes.
  ValueId source(ValueId value) const;
  // The value that it is a piece of; itself where it is none.
  ValueId whole(ValueId value) const;
  // Its pieces, in their order.
  std::vector<ValueId> pieces(ValueId value) const;
  // Whether two values have bytes of one value in common.
  bool overlap(ValueId one, ValueId other) const;
  // Whether the part writes some of the value.
  bool writes_some(const PartSpec& part, ValueId value) const;
  // The values that exchanges make and that are needed for this one to be whole: itself, or its pieces, or
  // what it is a piece of.
  std::vector<ValueId> exchanged_for(ValueId value) const;
  // Whether it is there from forward to backward, under that choice for the unit.
  bool is_kept(ValueId value, const ActivationChoice& choice) const;
  // The parts that a pass of such a step runs, by place, in the order in which they run. For forward and
  // backward: all of theirs. For a recompute: those that make again what backward reads and `choice` did not
  // keep; none where that is nothing.
  std::vector<int> parts_in(Pass pass, const ActivationChoice& choice, StepKind kind = StepKind::train) const;
  // The same with the exchanges of what these parts read. Each comes behind the part that writes what it is
  // made of; where no part of the pass does, one part ahead of its first reader or, of pieces of one value,
  // two for each. Of two that come close together, that which is read sooner is first.
  std::vector<GraphStep> steps_in(Pass pass, const ActivationChoice& choice,
                                  StepKind kind = StepKind::train) const;
  bool has_exchanges() const;
  // Throws UsageError naming `unit` and the value or part that means nothing, on so many tensor ranks.
  void check(std::string_view unit, int tensor_ranks = 1) const;
};

// The same graph for a schedule that runs weight gradients apart: parts of backward that write gradients of
// parameters, and nothing else, are of Pass::weight_gradient, those that it declares so take theirs from the
// parts of backward that write them else, and no value is written over another that they read. Unchanged
// where a part of backward still writes both gradients and values: then all stay together.
UnitGraph split_backward(const UnitGraph& graph);

struct ActivationSpec {
  IdVector<UnitGraph> units;     // empty, or one per unit
  std::int64_t batch_bytes = 0;  // inputs and targets of one microbatch
};

}  // namespace tessera
