// Proves that a step computes what one rank would compute, before it runs: by the programs alone, on all
// ranks at once. Pure. What can go wrong with lanes, memory and meetings is verify()'s.
#pragma once

#include "tessera/layout.h"
#include "tessera/verify.h"

namespace tessera {

// Follows what every buffer means along the programs of all ranks, with terms in place of numbers: which
// version of a flat's parameters, which microbatch's activation, which sum of which gradients. It proves
//
//  - at every use: the parameters are whole and of the version that the step began with (with the updates
//  that
//    the step before left, where it left some), and the activations are those of this unit and microbatch;
//  - at every update: each microbatch's gradient is in the sum exactly once, from every use that contributes
//    and from every rank along `shard` and `replicate`, in ascending order; gaps are zero; master and moments
//    are those of the step before; and it depends on a decision that is made by then;
//  - for the norm: the squares of each element are taken once, of the complete gradient, ahead of the
//  decision;
//  - at the end: every rank holds the next version of all that persists. Where the decision says no, it holds
//    what it held before.
//
// Both answers of every decision are followed. Ranks that differ only along `shard` and `replicate` run the
// same program and are followed as one: what a rank has of a flat is its own part, its peers have theirs. The
// order is that of issue; that lanes keep it is what verify() proves, whose findings this takes to be none.
//
// Not proved: what the trainer's own compute does within a use, and what Engine does outside programs.
// Throws UsageError where the ranks of one pipeline coordinate do not all run the same program, or where
// `layout` is not the one that the programs were built for.
VerifyReport prove(const WorldPrograms& world, const Layout& layout);

// What a rank at one pipeline coordinate runs in turns, in one plan. What is spanned outlives it.
struct RankPrograms {
  std::span<const Program> programs;
  const MemoryPlan* plan = nullptr;
};

// How the programs will run.
struct RunsOn {
  bool starts_in_order = false;  // as in WorldPrograms
  IssuerRuns issuer_runs = IssuerRuns::nothing;
};

// All that is proved of what a trainer runs: verify() and prove() of the ranks' programs of each number, and
// verify_turns() of each rank's. `by_pipeline_rank` has every coordinate, with as many programs each. The
// first report that has findings, or an empty one.
VerifyReport prove_all(const Mesh& mesh, const Layout& layout, std::span<const RankPrograms> by_pipeline_rank,
                       const RunsOn& runs_on = {});
// Throws Error with the findings: programs that are built, and are not proved, are a defect of Tessera.
void require_proved(const VerifyReport& report);

}  // namespace tessera
