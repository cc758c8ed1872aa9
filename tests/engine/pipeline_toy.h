// Pipeline ranks driven through the engine's verbs, with values that tell where they come from.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/program.h"
#include "tests/engine/toy.h"

namespace tessera::testing {

inline constexpr std::int64_t kNumel = 64;  // of what a unit hands on

// The embedder's own activations are its own; only what goes between units, and so between ranks, is planned.
inline EngineOptions pipeline_options(const Mesh& mesh, int units, int microbatches) {
  EngineOptions options = toy_options(1, 0);
  options.mesh = mesh;
  ActivationSpec activations;
  activations.units.assign(static_cast<std::size_t>(units),
                           UnitActivations{.output_bytes = kNumel * 4, .reads_batch = false});
  options.programs = {{.kind = StepKind::train, .microbatches = microbatches, .activations = activations}};
  return options;
}

inline float* floats(const UnitLease& lease, Role role) { return static_cast<float*>(lease.address(role)); }

// One step by the program's own order. A unit adds 1 to its input, and its gradient is that of its output
// plus 1. What unit u of microbatch m hands on is then 1000·m + u + 1, and gets back 1000·m + units − u − 1.
template <typename Within>
void pipeline_uses(Engine& engine, const ToyStep& step, int data_rank, const Within& within) {
  const Program& program = engine.running();
  const auto units = engine.layout().units().count();
  for (const Instruction& use : program.instructions) {
    if (use.op != Opcode::use) continue;
    UnitLease lease = engine.use(use.unit, use.pass);
    within(use);
    const auto base = static_cast<float>(1000 * use.microbatch);
    if (use.pass == Pass::forward) {
      const float* input = floats(lease, Role::input);
      for (std::int64_t k = 0; input != nullptr && k < kNumel; ++k)
        ASSERT_EQ(input[k], base + static_cast<float>(use.unit)) << program.units[use.unit].name;
      std::fill_n(floats(lease, Role::output), kNumel, base + static_cast<float>(use.unit) + 1);
    } else {
      const float* gradient = floats(lease, Role::output_gradient);
      for (std::int64_t k = 0; gradient != nullptr && k < kNumel; ++k)
        ASSERT_EQ(gradient[k], base + static_cast<float>(units - use.unit - 1));
      if (float* const input_gradient = floats(lease, Role::input_gradient))
        std::fill_n(input_gradient, kNumel, base + static_cast<float>(units - use.unit));
      ToyStep as_data_rank = step;
      as_data_rank.gradient = [&](GradientAt at) {
        at.rank = data_rank;
        return step.gradient(at);
      };
      write_gradients(engine, lease, as_data_rank, engine.loss_scale());
    }
    lease.end();
  }
}

inline std::vector<UnitSpec> chain(int units, std::int64_t numel = 256) {
  std::vector<UnitSpec> made;
  for (int unit = 0; unit < units; ++unit) {
    const std::string name = "block." + std::to_string(unit);
    made.push_back({.name = name, .parameters = {{.name = name + ".weight", .shape = {numel}}}});
  }
  return made;
}

}  // namespace tessera::testing
