// Proves that a step computes what one rank would compute, before it runs: by the programs alone, on all
// ranks at once. Pure. What can go wrong with lanes, memory and meetings is verify()'s.
#pragma once

#include <string>
#include <vector>

#include "tessera/layout.h"
#include "tessera/numerics.h"
#include "tessera/verify.h"

namespace tessera {

// Follows what every buffer means along the programs of all ranks, with terms in place of numbers: which
// version of a flat's parameters, which microbatch's activation, which sum of which gradients. It proves:
//
//  - At every use, the parameters are whole and of one version: the one that the step began with or, where
//    the step before left updates, the one behind these. The activations are those of this unit and
//    microbatch.
//  - At every update, each microbatch's gradient is in the sum exactly once, from every use that contributes
//    and from every rank along `shard` and `replicate` that has it, in ascending order. Gaps are zero. Master
//    and moments are those of the step before. The update depends on a decision that is made by then, or on
//    the terms that the step began with. The gradient of an update that is left to the next step is proved
//    where it is left.
//  - For the norm, the squares of each element are taken once, of the complete gradient, and ahead of the
//    decision.
//  - At the end, every rank holds the next version of all that persists. Where the decision on which its
//    update depends says no, it holds what it held before.
//
// Both answers of every decision are followed. Ranks that run the same programs along the pipeline are
// followed as one: what a rank has of a flat is its own part, its peers have theirs. Where others run other
// programs, as in a last round in which some ranks rest, these are followed beside them, and it is proved
// that to every collective they bring the same, or nothing where the sum is not of all ranks. The order is
// that of issue. verify() proves that the lanes keep it, and that sums are of the ranks that they name;
// prove() assumes that verify() has found nothing.
//
// Not proved: what the trainer's own compute does within a use, and what Engine does outside programs.
// Throws UsageError where there are no programs, where a rank runs the program of another pipeline
// coordinate, and where a buffer is of a flat that `layout` does not have.
//
// `gradients`, where it is given and nothing is found, gets for each trainable parameter how a training step
// adds up its gradient, over all ranks and microbatches: equal texts for equal sums, whichever programs make
// them (src/verify/global_sum.h). Empty for a frozen parameter, and for one that is tied to another.
VerifyReport prove(const WorldPrograms& world, const Layout& layout,
                   std::vector<std::string>* gradients = nullptr);

// The programs that a rank at one pipeline coordinate runs in turns, and their plan. The caller keeps both
// alive. Ranks run them from the place `first_data_rank` along the shard axis on.
struct RankPrograms {
  std::span<const Program> programs;
  const MemoryPlan* plan = nullptr;
  int first_data_rank = 0;
};

// How the programs will run.
struct RunsOn {
  bool starts_in_order = false;  // as in WorldPrograms
  IssuerRuns issuer_runs = IssuerRuns::nothing;
};

// All that is proved of what a trainer runs: verify() and prove() for the first programs of all ranks, then
// for the second, and so on; then verify_turns() for each rank. `of_ranks` has every pipeline coordinate, in
// their order, for every first data rank, ascending, each with a plan and with as many programs as the
// others. Returns the first report that has findings, or an empty one. `numerics`, where it is given, gets
// Numerics::program.
VerifyReport prove_all(const Mesh& mesh, const Layout& layout, std::span<const RankPrograms> of_ranks,
                       const RunsOn& runs_on = {}, Numerics* numerics = nullptr);
// Throws Error with the findings: programs that are built, and are not proved, are a defect of Tessera.
void require_proved(const VerifyReport& report);

}  // namespace tessera
