// What is sharded, when gradients are reduced, and how far ahead parameters are gathered.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/dtype.h"
#include "tessera/error.h"
#include "tessera/id_vector.h"
#include "tessera/mesh.h"
#include "tessera/reduction.h"
#include "tessera/space.h"
#include "tessera/spread.h"

namespace tessera {

enum class Placement : std::uint8_t { replicated, sharded };
std::string_view name_of(Placement placement);

// A ZeRO stage as three placements (ZeRO, Rajbhandari et al. 2020, §5). Stage 0 is plain data parallelism.
struct Placements {
  Placement parameters = Placement::replicated;
  Placement gradients = Placement::replicated;
  Placement optimizer_state = Placement::replicated;

  // Throws UsageError unless 0 ≤ stage ≤ 3.
  static Placements of_stage(int stage);
  bool operator==(const Placements&) const = default;
};

// When the gradients of a step's microbatches are reduced over the ranks: after each microbatch, so that any
// number of shards gives the same bits (docs/numerics.md), or after the last, which a slow network may need
// with many short microbatches. `automatic` means `each` if gradients are sharded and `last` if they are
// replicated. With one microbatch the two are the same. With several they differ by rounding: a run at stage
// 1 and one at stage 2 have the same bits only if the same one is chosen for both.
enum class ReduceWhen : std::uint8_t { automatic, each, last };
std::string_view name_of(ReduceWhen reduce);

// When optimizer states and parameters are updated.
enum class UpdateWhen : std::uint8_t {
  decided,  // after the step's decision: gradients can be clipped, and a step that is not finite is skipped
  // As soon as a flat's gradient is reduced and no use of the step reads the flat any more. The gradient's
  // memory is then free while backward goes on. There is no decision: no clipping, no loss scaling and no
  // abandoning, and values that are not finite enter the weights. Engine::begin needs the StepTerms.
  reduced,
  // The host's updates run in the next step, each flat before its first use there, so that updates and
  // uploads hide behind that step's forward. The decision is the same as with `decided`, and so are the bits.
  // Until the update, states and parameters keep their old values (see Engine::finish_updates). The device's
  // updates run as with `decided`.
  next
};
std::string_view name_of(UpdateWhen update);

// Which activations a unit recomputes just before its backward, instead of keeping them from its forward.
enum class Recompute : std::uint8_t {
  none,
  selective,  // those that are cheap to compute: outputs of norms and activation functions; no matmul is
              // repeated
  full        // all but its input
};

std::string_view name_of(Recompute recompute);

// The order in which a pipeline rank runs the forward and backward passes of its chunks; docs/architecture.md
// has them. The order changes time and memory, never a result.
enum class PipelineSchedule : std::uint8_t {
  one_forward_one_backward,  // 1F1B (PipeDream-flush, Narayanan et al. 2021): one chunk a rank
  gpipe,                     // all forwards, then all backwards (Huang et al. 2019): one chunk a rank
  interleaved,               // 1F1B over several chunks a rank (Narayanan et al. 2021, Megatron-LM)
  looped,                    // breadth-first: each chunk takes all microbatches (Lamy-Poirier 2023)
  zb_h1,                     // 1F1B with weight gradients where ranks would wait (Qi et al. 2023)
  zb_v                       // likewise, over two chunks a rank of a chain that runs down the ranks and back
};

// How one unit's activations are kept between its forward and its backward.
struct ActivationChoice {
  Recompute recompute = Recompute::none;
  // Where its input and, unless recompute is full, its saved activations wait: the device or the host.
  Space kept = Space::device;
  // Further values of the unit, by their ids in its UnitGraph, that are made again in place of being kept:
  // such as the output of one matmul, which takes much memory for its time. Ascending. Not with full, which
  // makes all of them again.
  std::vector<int> again = {};
  bool recomputes() const { return recompute != Recompute::none || !again.empty(); }
  bool operator==(const ActivationChoice&) const = default;
};

// Which data live off the device between their uses (ZeRO-Offload, Ren et al. 2021; ZeRO-Infinity,
// Rajbhandari et al. 2021). Programs move them by copies on separate lanes.
struct Offload {
  // Master weights and moments. If they are not on the device, the host runs the updates: each unit's reduced
  // gradients are copied to the host and stay there between microbatches, and updated parameters are copied
  // back, unit by unit.
  Space states = Space::device;
  // The share of the units, from 0 to 1 and counted from the first, whose states stay on the device
  // nevertheless. The device updates these while the host updates the others.
  double states_on_device = 0.0;
  // Parameter shards, or replicas' slices of them. Needs sharded parameters.
  Space parameters = Space::device;
  // With states on the disk: how many flats' states are on the host at the same time, being read, updated or
  // written back. With 1, none of that overlaps.
  int staged = 2;
  // Where the saved activations and inputs of every unit but the last wait from forward to backward: device
  // or host. With prefetch they are copied back to the device while the use before their own runs. While they
  // are copied to the host, during one use, they still take memory on the device.
  Space activations = Space::device;

  // Throws UsageError for a share or count out of range.
  void check() const;
  // Whether anything lives on the disk.
  bool on_disk() const { return states == Space::disk || parameters == Space::disk; }
  bool operator==(const Offload&) const = default;
};

// How a chain of units is cut over the mesh's pipeline axis. Used only if that axis has 2 or more ranks.
struct Pipeline {
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int chunks = 1;         // chunks of units on each rank; the schedule says which (docs/architecture.md)
  std::vector<int> cuts;  // the first unit of every chunk but the first, ascending; empty: equal counts
  // With sharded parameters: whether a unit stays gathered while its chunk runs several microbatches in a row
  // in the same pass, instead of being gathered for each. For schedules with such runs.
  bool gather_once = false;
  bool operator==(const Pipeline&) const = default;
};

struct Strategy {
  Placements placements;
  ReduceWhen reduce = ReduceWhen::each;
  Reduction reduction = Reduction::exact;  // native: between GPUs only
  // With more than 1, a power of two: a step's microbatches are cut into so many consecutive blocks of equal
  // size. A block's gradients are one sum in ascending order, and blocks are added as a balanced tree. Each
  // replica has consecutive blocks, so that the sum is the same whatever mesh.replicate is, which must divide
  // them (docs/numerics.md). Needs exact reductions of each microbatch, which ReduceWhen::automatic then
  // means. Each doubling of a replica's blocks takes a shard of fp32 gradients more. With 1 each replica has
  // a sum of its own, and these are added in the replicas' order.
  int blocks = 1;
  UpdateWhen update = UpdateWhen::decided;
  // How many uses ahead of the running one have their parameters gathered already. 0 gathers when needed and
  // hides nothing. At 1 or more, a unit's gradient is also reduced while the next unit's backward runs.
  int prefetch = 1;
  // For every unit but the last, whose backward follows its forward at once.
  Recompute recompute = Recompute::none;
  // One for each unit, in place of `recompute` and `offload.activations`. Empty: those hold for all units.
  IdVector<ActivationChoice> unit_activations = {};
  // With sharded parameters: how many units, counted from the last, keep their gathered parameters from
  // forward to backward. 0 releases all of them. fit_resident_units() finds as many as a budget allows.
  int resident_units = 0;
  // With several replicas (mesh.replicate): each replica keeps and updates only its slice of its shard's
  // optimizer state, and the updated parameters are gathered over the replicas. Needs sharded optimizer
  // state.
  bool state_over_replicas = false;
  // The same for sharded parameters, too (hpZ of ZeRO++, Wang et al. 2023): between steps each replica keeps
  // its slice of its shard. A step's first gather of a unit brings the shard together over the replicas and
  // keeps it for the rest of the step, so that all other gathers stay within the shard group. Needs
  // state_over_replicas. With one shard (mesh.shard = 1) parameters stay whole nevertheless, and must be on
  // the device.
  bool parameters_over_replicas = false;
  Pipeline pipeline = {};
  Offload offload = {};

  // Throws UsageError, naming the field, for a combination that has no meaning.
  void check() const;
  // Moves all optimizer states to the device. UpdateWhen::next then becomes decided, because only the host's
  // updates can be left to the next step.
  void keep_states_on_device();
  // The choice for a unit, numbered from 0.
  ActivationChoice activations_of(int unit) const;
  // Resolves `automatic`: returns each or last.
  ReduceWhen reduce_when(const Rounds& rounds) const;
};

// The placements on a mesh as spreads. With one shard everything is whole, except what replicas slice.
struct Spreads {
  Spread parameters;  // between steps
  Spread gradients;   // of the reduced gradient of each microbatch
  Spread states;      // of masters and moments, and of everything else that an update touches
};
Spreads spreads_of(const Strategy& strategy, const Mesh& mesh);

}  // namespace tessera
