// What the modules' uses read and write besides parameters and gradients, and from when to when it is kept.
#include "src/build/builder.h"

namespace tessera {

void Builder::access_activations(Instruction& use) {
  const auto touch_whole = [&](Role role, BufferId id, Access access) {
    if (id < 0) return;
    if (access == Access::write) begin(id, next_id());
    use.operands.push_back(whole(role, id, access));
  };
  using enum Access;
  const int microbatch = use.microbatch;
  if (const BufferId batch = batch_.of(microbatch); batch >= 0 && reads_batch(use.unit))
    touch_whole(Role::batch, batch, buffer(batch).lifetimes.empty() ? write : read);
  const UnitBuffers& own = unit_buffers_[use.unit];
  const UnitBuffers none, &before = use.unit > 0 ? unit_buffers_[use.unit - 1] : none;
  touch_whole(Role::workspace, own.workspace, write);
  touch_whole(Role::input, before.output.of(microbatch), read);
  switch (use.pass) {
    case Pass::forward:
      touch_whole(Role::output, own.output.of(microbatch), write);
      // Both end here where a recompute will write them again.
      touch_whole(Role::saved, own.saved.of(microbatch), write);
      touch_whole(Role::recomputable, own.recomputable.of(microbatch), write);
      break;
    case Pass::recompute:
      touch_whole(Role::saved, own.saved.of(microbatch), use.selective ? read : write);
      touch_whole(Role::recomputable, own.recomputable.of(microbatch), write);
      break;
    case Pass::backward:
      touch_whole(Role::saved, own.saved.of(microbatch), read);
      touch_whole(Role::recomputable, own.recomputable.of(microbatch), modify);
      touch_whole(Role::output_gradient, own.output_gradient.of(microbatch), read);
      touch_whole(Role::input_gradient, before.output_gradient.of(microbatch), write);
      break;
  }
}

// Between its forward and its backward. The last unit's follow each other.
bool Builder::leaves_device(UnitId unit) const {
  return train() && unit + 1 < layout_.units().count() &&
         spec_.strategy.activations_of(unit).kept == Space::host;
}

std::vector<Builder::Waiting> Builder::waiting_of(const Slot& slot) const {
  const UnitId unit = slot.use.unit;
  const UnitBuffers& own = unit_buffers_[unit];
  std::vector<Waiting> all;
  if (rests_in(slot.microbatch)) return all;
  const auto add = [&](const PerMicrobatch& device, const PerMicrobatch& host) {
    if (!host.empty()) all.push_back({device.of(slot.microbatch), host.of(slot.microbatch)});
  };
  add(own.saved, own.saved_on_host);
  if (unit > 0) add(unit_buffers_[unit - 1].output, own.input_on_host);
  return all;
}

// Behind the unit's forward; the next use need not wait for it.
void Builder::take_down_activations(int position) {
  const Slot& slot = slots_[position];
  if (slot.use.pass != Pass::forward) return;
  for (const auto& [device, host] : waiting_of(slot)) {
    const InstructionId id = copy(
        {.unit = slot.use.unit, .microbatch = slot.microbatch, .operands = {}, .waits = {}}, device, host);
    release_behind(device, id, position);
  }
}

// For the use at `position` and, with prefetch, for the next. The first use since its unit's forward brings
// what the others need, too.
void Builder::bring_activations(int position) {
  const int ahead = spec_.strategy.prefetch > 0 ? 1 : 0;
  const Slot& running = slots_[position];
  for (int at = position; at <= position + ahead && at < slots_.count(); ++at) {
    Slot& slot = slots_[at];
    if (slot.use.pass == Pass::forward || slot.brought) continue;
    const bool same = slot.use.unit == running.use.unit && slot.microbatch == running.microbatch;
    if (at > position && same) continue;  // the running use brought it, or has yet to make it
    slot.brought = true;
    const bool recomputed =
        at > 0 && slots_[at - 1].use == Use{.unit = slot.use.unit, .pass = Pass::recompute};
    if (recomputed) continue;
    for (const auto& [device, host] : waiting_of(slot))
      copy({.unit = slot.use.unit, .microbatch = slot.microbatch, .operands = {}, .waits = {}}, host, device);
  }
}

}  // namespace tessera
