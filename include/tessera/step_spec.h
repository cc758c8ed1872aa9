// What a step's program is built from, and the function that builds it. The program itself is
// tessera/program.h. Pure.
#pragma once

#include <span>
#include <vector>

#include "tessera/activations.h"
#include "tessera/dtype.h"
#include "tessera/layout.h"
#include "tessera/mesh.h"
#include "tessera/pass.h"
#include "tessera/program.h"
#include "tessera/strategy.h"
#include "tessera/use.h"

namespace tessera {

// Whether a use of the unit in this pass reads its parameters: only then are they gathered. Weight gradients
// are products of values.
inline bool reads_parameters(const UnitSpec& unit, Pass pass) {
  return pass == Pass::forward || (pass != Pass::weight_gradient && !unit.read_in_forward_only);
}

// Everything a program depends on besides layout and mesh.
struct StepSpec {
  StepKind kind = StepKind::train;
  // Rounds of microbatches, one of each data rank (see Rounds). In the last, only so many of them have one,
  // the first ones; 0: all. The others rest there: they take part in its collectives, contribute nothing to
  // its reductions and have no use. That needs mesh.replicate 1 or several blocks, exact reductions, and a
  // reduction for each microbatch, which ReduceWhen::automatic then means.
  int microbatches = 1;
  int last_round_ranks = 0;
  Strategy strategy;
  int moments = 2;  // values that the optimizer keeps for each element, besides the master: 0 to 2
  DType moment_type = DType::fp32;
  bool parameter_norms = false;  // a pair of the scalars for each parameter, too
  bool zero_gradients = false;   // a microbatch's gradients are zeroed first, for trainers that only add
  // Around each buffer, see plan_memory(). Of specs that are planned together the most counts.
  std::int64_t guard_bytes = 0;
  ActivationSpec activations;
  // Uses per microbatch. Empty: forward in unit order, then backward in reverse, each behind its recompute
  // where the strategy asks for it, with microbatches as the strategy's pipeline schedule says. An evaluation
  // takes the forward uses only. An order of one's own needs a mesh without pipeline.
  std::vector<Use> order;
};

inline Rounds rounds_of(const StepSpec& spec) {
  return {.count = spec.microbatches,
          .last_ranks = spec.last_round_ranks,
          .blocks = spec.kind == StepKind::train ? spec.strategy.blocks : 1};
}

// The places along the shard axis at which the programs of these specs change, ascending from 0: a rank runs
// what the last of them runs that is not behind its own.
std::vector<int> first_data_ranks(std::span<const StepSpec> specs);

// The default order of `StepSpec::order`.
std::vector<Use> default_order(int units, const StepSpec& spec);

// Builds the program of every rank with this coordinate along the mesh's pipeline axis that rests in the last
// round, or does not, as `data_rank` does (they are equal: a rank differs only in which shard it holds).
// `layout` is of all units, over mesh.shard shards and mesh.replicate replicas. The waits are the fewest that
// order every pair of conflicting accesses; plan_memory() and link() add those that shared addresses need.
// Throws UsageError naming the field for a spec that means nothing, such as a backward before its forward.
Program build_step(const Layout& layout, const Mesh& mesh, const StepSpec& spec, int pipeline_rank = 0,
                   int data_rank = 0);

}  // namespace tessera
