// What is sharded, when gradients are reduced, and how far ahead parameters are gathered.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/dtype.h"
#include "tessera/error.h"
#include "tessera/mesh.h"
#include "tessera/reduction.h"
#include "tessera/space.h"
#include "tessera/spread.h"

namespace tessera {

enum class Placement : std::uint8_t { replicated, sharded };
std::string_view name_of(Placement placement);

// A ZeRO stage is three placements (ZeRO, Rajbhandari et al. 2020, §5; stage 0 is plain data parallelism).
struct Placements {
  Placement parameters = Placement::replicated;
  Placement gradients = Placement::replicated;
  Placement optimizer_state = Placement::replicated;

  // Throws UsageError unless 0 ≤ stage ≤ 3.
  static Placements of_stage(int stage);
  bool operator==(const Placements&) const = default;
};

// When the gradients of a step's microbatches are reduced over the ranks. `automatic` is each where gradients
// are sharded and last where they are replicated. With one microbatch the two are the same; with several they
// differ by rounding, so that a run at stage 1 and one at stage 2 have the same bits only where one is
// chosen.
enum class ReduceWhen : std::uint8_t { automatic, each, last };
std::string_view name_of(ReduceWhen reduce);

// When optimizer states and parameters are updated.
enum class UpdateWhen : std::uint8_t {
  decided,  // behind the step's decision: gradients can be clipped, and a step that goes wrong skipped
  // As soon as a flat's gradient is reduced and no use of the step reads it any more: behind it backward goes
  // on, and the gradient's memory is free. Then there is nothing to decide: no clipping, no loss scaling, no
  // abandoning, and what is not finite enters the weights. Engine::begin needs the StepTerms.
  reduced,
  // What the host updates: by the next step, each flat ahead of its first use there, so that updates and
  // uploads hide behind that step's forward. Decided as above, and with the same bits; until then states and
  // parameters are those of before (Engine::finish_updates). What the device updates is updated when decided.
  next
};
std::string_view name_of(UpdateWhen update);

// Which activations a unit makes again just before its backward, rather than keep them from its forward on.
enum class Recompute : std::uint8_t {
  none,
  selective,  // what is cheap to make again: outputs of norms and activation functions; no matmul is repeated
  full        // all but its input
};

std::string_view name_of(Recompute recompute);

// In which order a pipeline rank runs the forward and backward passes of its chunks; docs/architecture.md
// draws them. The order changes time and memory, never a result.
enum class PipelineSchedule : std::uint8_t {
  one_forward_one_backward,  // 1F1B (PipeDream-flush, Narayanan et al. 2021): one chunk a rank
  gpipe,                     // all forwards, then all backwards (Huang et al. 2019): one chunk a rank
  interleaved,               // 1F1B over several chunks a rank (Narayanan et al. 2021, Megatron-LM)
  looped                     // breadth-first: each chunk takes all microbatches (Lamy-Poirier 2023)
};

// What becomes of one unit's activations between its forward and its backward.
struct ActivationChoice {
  Recompute recompute = Recompute::none;
  // Where what it saves, unless recompute is full, and its input wait: the device or the host.
  Space kept = Space::device;
  bool operator==(const ActivationChoice&) const = default;
};

// What lives elsewhere than on the device between its uses (ZeRO-Offload, Ren et al. 2021; ZeRO-Infinity,
// Rajbhandari et al. 2021). Programs bring it and take it back by copies on lanes of their own.
struct Offload {
  // Master weights and moments. Where they are not on the device, the host updates: reduced gradients go down
  // as each unit is reduced, and stay down between microbatches; updated parameters come up, unit by unit.
  Space states = Space::device;
  // Of the units, counted from the first, this share keeps its states on the device all the same, and is
  // updated there while the host updates the others (0 to 1).
  double states_on_device = 0.0;
  // Parameter shards, or replicas' slices of them. Needs sharded parameters.
  Space parameters = Space::device;
  // Flats whose states from the disk are on the host at a time: being read, updated, or written back. At 1
  // nothing of that overlaps.
  int staged = 2;
  // What units save, and their inputs, from forward to backward: device or host. Of every unit but the last.
  // With prefetch they come up while the use before theirs runs, and their memory on the device stays taken
  // while they go down behind one use.
  Space activations = Space::device;

  // Throws UsageError for a share or a count that means nothing.
  void check() const;
  // Whether the disk holds anything.
  bool on_disk() const { return states == Space::disk || parameters == Space::disk; }
  bool operator==(const Offload&) const = default;
};

// How a chain of units is cut over the mesh's pipeline axis. Means something where that axis has 2 or more.
struct Pipeline {
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int chunks = 1;         // runs of units on each rank; chunk c of all is on pipeline rank c mod `pipeline`
  std::vector<int> cuts;  // the first unit of every chunk but the first, ascending; empty: equal counts
  // With sharded parameters: whether a unit stays gathered while its chunk takes several microbatches in a
  // row in the same pass, rather than being gathered for each of them. For schedules that do so.
  bool gather_once = false;
  bool operator==(const Pipeline&) const = default;
};

struct Strategy {
  Placements placements;
  ReduceWhen reduce = ReduceWhen::automatic;
  Reduction reduction = Reduction::exact;  // native: between GPUs only
  UpdateWhen update = UpdateWhen::decided;
  // Uses ahead of the running one whose parameters are already being gathered; 0 gathers when needed and
  // hides nothing. Also, at 1 or more, a unit's gradient is reduced behind the next unit's backward.
  int prefetch = 1;
  // Of every unit but the last, whose backward follows its forward at once.
  Recompute recompute = Recompute::none;
  // One for each unit, in place of `recompute` and `offload.activations`; empty: all units alike.
  std::vector<ActivationChoice> unit_activations = {};
  // With sharded parameters: how many units, counted from the last, keep their gathered parameters from
  // forward to backward. 0 releases all; see fit_resident_units() for as many as a budget allows.
  int resident_units = 0;
  // With several replicas (mesh.replicate): each keeps and updates only its slice of its shard's optimizer
  // state, and the updated parameters are gathered over the replicas. Needs sharded optimizer state.
  bool state_over_replicas = false;
  // The same for sharded parameters, too (hpZ of ZeRO++, Wang et al. 2023): between steps each replica keeps
  // its slice of its shard. A step's first gather of a unit brings the shard together over the replicas and
  // keeps it for the rest of the step, so that all other gathers stay within the shard group. Needs
  // state_over_replicas. Where there is one shard (mesh.shard), parameters stay whole all the same, and must
  // be on the device.
  bool parameters_over_replicas = false;
  Pipeline pipeline = {};
  Offload offload = {};

  // Throws UsageError for a combination that means nothing, naming the field.
  void check() const;
  // All optimizer states on the device, and no update left to the next step, as only the host's can be.
  void keep_states_on_device();
  // What holds for a unit, numbered from 0.
  ActivationChoice activations_of(int unit) const;
  // each or last, never automatic.
  ReduceWhen reduce_when(int microbatches) const;
};

// What the placements mean on a mesh, in spreads: where there is one shard all of it is whole, but for what
// replicas slice.
struct Spreads {
  Spread parameters;  // between steps
  Spread gradients;   // reduced, of every microbatch
  Spread states;      // masters and moments, and what an update touches
};
Spreads spreads_of(const Strategy& strategy, const Mesh& mesh);

}  // namespace tessera
