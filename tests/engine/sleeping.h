// Uses that sleep for known times, for tests that tell time.
#pragma once

#include <chrono>

#include "src/device/wait.h"
#include "tests/engine/toy.h"

namespace tessera::testing {

// All uses of the step that has begun, each as long as use_us(instruction) says; backward writes gradients
// meanwhile.
template <typename Microseconds>
void sleeping_uses(Engine& engine, const Microseconds& use_us) {
  for (const Instruction& use : engine.running().instructions) {
    if (use.op != Opcode::use) continue;
    UnitLease lease = engine.use(use.unit, use.pass);
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::microseconds(static_cast<int>(use_us(use)));
    if (use.pass == Pass::backward) write_gradients(engine, lease, {});
    device::sleep_until_exactly(until);
    lease.end();
  }
}

}  // namespace tessera::testing
