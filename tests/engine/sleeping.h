// Steps that sleep for known times, for tests that tell time.
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <vector>

#include "src/device/wait.h"
#include "tessera/program.h"
#include "tessera/simulate.h"
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

struct Measured {
  double step_us = 0;                // on the rank where it took longest
  double stretched_us = 0;           // what sleeps took longer than asked to, on the rank where that is most
  std::vector<double> took_us = {};  // by instruction, on the rank where it took longest; where programs
                                     // differ by rank, of no use
};

// The shortest of so many steps behind a first one, each run by run_step(engine), in a world whose
// communication takes `delay`. asked_us(instruction) is what one was to take: 0 where that is not looked at.
template <typename RunStep, typename Microseconds>
Measured shortest_step(int count, const std::vector<UnitSpec>& units, const EngineOptions& options,
                       std::chrono::microseconds delay, const RunStep& run_step,
                       const Microseconds& asked_us) {
  std::vector<Measured> steps(static_cast<std::size_t>(count));
  std::mutex mutex;
  run_local(options.mesh.world(), kBlocking, [&](Communicator world) {
    world.set_delay(delay);
    Engine engine(world, units, options);
    engine.initialize(toy_fill());
    run_step(engine);  // what a step leaves to the next, the first has not
    for (Measured& step : steps) {
      world.barrier();
      engine.set_tracing(true);
      run_step(engine);
      const std::vector<Instruction>& instructions = engine.program(0).instructions;
      double stretched = 0;
      const std::scoped_lock lock(mutex);
      step.took_us.resize(std::max(step.took_us.size(), instructions.size()));
      for (const TraceSpan& span : engine.trace()) {
        const auto id = static_cast<std::size_t>(span.instruction);
        const double asked = asked_us(instructions[id]), took = span.end_us - span.start_us;
        if (asked > 0) stretched += took - asked;
        step.took_us[id] = std::max(step.took_us[id], took);
      }
      step.step_us = std::max(step.step_us, engine.timing().total_us);
      step.stretched_us = std::max(step.stretched_us, stretched);
    }
  });
  return *std::ranges::min_element(steps, {}, &Measured::step_us);
}

}  // namespace tessera::testing
