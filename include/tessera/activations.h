// The activation memory of each unit, as the code that computes the unit declares it. Memory plans count
// these bytes.
#pragma once

#include <cstdint>

#include "tessera/id_vector.h"

namespace tessera {

// What a unit's module keeps and needs, in bytes per microbatch on one rank. All zero where the trainer keeps
// its activations in memory of its own.
struct UnitActivations {
  std::int64_t output_bytes = 0;
  std::int64_t saved_bytes = 0;         // kept from forward to backward unless recompute is full
  std::int64_t recomputable_bytes = 0;  // kept likewise unless recompute is selective or full. Cheap to make
                                        // again from `saved` and the input; backward may overwrite it
  std::int64_t workspace_bytes = 0;     // the most that any pass needs while it runs
  bool reads_batch = true;              // some pass reads the microbatch, so the unit's pipeline rank needs
                                        // it
};

struct ActivationSpec {
  IdVector<UnitActivations> units;  // empty, or one per unit
  std::int64_t batch_bytes = 0;     // inputs and targets of one microbatch
};

}  // namespace tessera
