// What is sharded, when gradients are reduced, and how far ahead parameters are gathered.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/dtype.h"
#include "tessera/error.h"

namespace tessera {

enum class Placement : std::uint8_t { replicated, sharded };

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
// are sharded and last where they are replicated. With one microbatch the two are the same.
enum class ReduceWhen : std::uint8_t { automatic, each, last };

// Which activations a unit keeps from forward to backward: all it saves, or only its input.
enum class Recompute : std::uint8_t { none, full };

struct Strategy {
  Placements placements;
  ReduceWhen reduce = ReduceWhen::automatic;
  // Uses ahead of the running one whose parameters are already being gathered; 0 gathers when needed and
  // hides nothing. Also, at 1 or more, a unit's gradient is reduced behind the next unit's backward.
  int prefetch = 1;
  Recompute recompute = Recompute::none;
  // With sharded parameters: how many units, counted from the last, keep their gathered parameters from
  // forward to backward. 0 releases all; see fit_resident_units() for as many as a budget allows.
  int resident_units = 0;

  // Throws UsageError for a combination that means nothing, naming the field.
  void check() const;
  // each or last, never automatic.
  ReduceWhen reduce_when(int microbatches) const;
};

}  // namespace tessera
