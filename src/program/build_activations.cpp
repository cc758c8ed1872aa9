// What the modules' uses read and write besides parameters and gradients, and from when to when it is kept.
#include "src/program/builder.h"

namespace tessera {

void Builder::access_activations(Instruction& use) {
  const auto id = static_cast<InstructionId>(program_.instructions.size());
  const auto fresh = [&](BufferId written) {
    if (written < 0) return;
    begin(written, id);
    insert_sorted(use.writes, written);
  };
  const auto read = [&](BufferId read_from) {
    if (read_from >= 0) insert_sorted(use.reads, read_from);
  };
  const auto update = [&](BufferId updated) {
    read(updated);
    if (updated >= 0) insert_sorted(use.writes, updated);
  };
  const int microbatch = use.microbatch;
  if (const BufferId batch = program_.batch.of(microbatch); batch >= 0 && reads_batch(use.unit))
    buffer(batch).lifetimes.empty() ? fresh(batch) : read(batch);
  const UnitBuffers& own = program_.unit_buffers[static_cast<std::size_t>(use.unit)];
  fresh(own.workspace);
  if (use.unit > 0) read(program_.unit_buffers[static_cast<std::size_t>(use.unit) - 1].output.of(microbatch));
  switch (use.pass) {
    case Pass::forward:
      fresh(own.output.of(microbatch));
      // Both end here where a recompute will write them again.
      fresh(own.saved.of(microbatch));
      fresh(own.recomputable.of(microbatch));
      break;
    case Pass::recompute:
      use.selective ? read(own.saved.of(microbatch)) : fresh(own.saved.of(microbatch));
      fresh(own.recomputable.of(microbatch));
      break;
    case Pass::backward:
      read(own.saved.of(microbatch));
      update(own.recomputable.of(microbatch));
      read(own.output_gradient.of(microbatch));
      if (use.unit > 0)
        fresh(program_.unit_buffers[static_cast<std::size_t>(use.unit) - 1].output_gradient.of(microbatch));
      break;
  }
}

}  // namespace tessera
