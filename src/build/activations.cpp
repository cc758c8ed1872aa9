// What the modules' uses read and write besides parameters and gradients, and from when to when it is kept.
#include "src/build/builder.h"

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

// Between its forward and its backward. The last unit's follow each other.
bool Builder::leaves_device(UnitId unit) const {
  return train() && unit + 1 < static_cast<UnitId>(layout_.units().size()) &&
         spec_.strategy.activations_of(unit).kept == Space::host;
}

std::vector<Builder::Waiting> Builder::waiting_of(const Slot& slot) const {
  const auto unit = static_cast<std::size_t>(slot.use.unit);
  const UnitBuffers& own = program_.unit_buffers[unit];
  std::vector<Waiting> all;
  const auto add = [&](const PerMicrobatch& device, const PerMicrobatch& host) {
    if (!host.empty()) all.push_back({device.of(slot.microbatch), host.of(slot.microbatch)});
  };
  add(own.saved, own.saved_on_host);
  if (unit > 0) add(program_.unit_buffers[unit - 1].output, own.input_on_host);
  return all;
}

// Behind the unit's forward; the next use need not wait for it.
void Builder::take_down_activations(int position) {
  const Slot& slot = slots_[static_cast<std::size_t>(position)];
  if (slot.use.pass != Pass::forward) return;
  for (const auto& [device, host] : waiting_of(slot)) {
    const InstructionId id =
        copy({.unit = slot.use.unit, .microbatch = slot.microbatch, .waits = {}, .reads = {}, .writes = {}},
             device, host);
    release_behind(device, id, position);
  }
}

// For the use at `position` and, with prefetch, for the next. The first use since its unit's forward brings
// what the others need, too.
void Builder::bring_activations(int position) {
  const int ahead = spec_.strategy.prefetch > 0 ? 1 : 0;
  const Slot& running = slots_[static_cast<std::size_t>(position)];
  for (int at = position; at <= position + ahead && at < static_cast<int>(slots_.size()); ++at) {
    Slot& slot = slots_[static_cast<std::size_t>(at)];
    if (slot.use.pass == Pass::forward || slot.brought) continue;
    const bool same = slot.use.unit == running.use.unit && slot.microbatch == running.microbatch;
    if (at > position && same) continue;  // the running use brought it, or has yet to make it
    slot.brought = true;
    const bool recomputed = at > 0 && slots_[static_cast<std::size_t>(at) - 1].use ==
                                          Use{.unit = slot.use.unit, .pass = Pass::recompute};
    if (recomputed) continue;
    for (const auto& [device, host] : waiting_of(slot))
      copy({.unit = slot.use.unit, .microbatch = slot.microbatch, .waits = {}, .reads = {}, .writes = {}},
           host, device);
  }
}

}  // namespace tessera
