// The activation memory of units, as whoever computes them declares it; plans are made of it.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// What a unit's module keeps and needs, in bytes per microbatch on one rank. All zero for a trainer that owns
// its activations.
struct UnitActivations {
  std::int64_t output_bytes = 0;
  std::int64_t saved_bytes = 0;         // kept from forward to backward unless recompute is full
  std::int64_t recomputable_bytes = 0;  // the same unless it is selective or full: cheap to make again from
                                        // what is saved and the input; backward may overwrite it
  std::int64_t workspace_bytes = 0;     // the most any pass needs
  bool reads_batch = true;              // in any pass: its pipeline rank then needs the microbatch itself
};

struct ActivationSpec {
  std::vector<UnitActivations> units;  // empty, or one per unit
  std::int64_t batch_bytes = 0;        // inputs and targets of one microbatch
};

}  // namespace tessera
