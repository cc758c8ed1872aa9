// Runs of the engine's toy model that are saved and continued.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint.h"
#include "tessera/layout.h"
#include "tests/engine/toy.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {

struct ToyRun {
  int world = 2;
  int stage = 3;
  DType type = DType::bf16;
  Offload offload = {};
  Mesh mesh = {.shard = world};  // whose ranks are `world`
  bool over_replicas = false;    // states, and parameters that are sharded
  double most_scale = LossScaleOptions{}.max;
  OptimizerOptions optimizer = toy_options(1, 0).optimizer.options;
  DType moments = DType::fp32;

  EngineOptions options() const {
    EngineOptions result = toy_options(world, stage);
    result.mesh = mesh;
    result.optimizer.options = optimizer;
    result.optimizer.moment_type = moments;
    result.strategy.offload = offload;
    result.strategy.state_over_replicas = over_replicas;
    result.strategy.parameters_over_replicas = over_replicas && stage == 3;
    if (mesh.pipeline > 1) {  // of which no step is run
      ActivationSpec activations;
      activations.units.assign(toy_units(type).size(),
                               UnitActivations{.output_bytes = 256, .reads_batch = false});
      result.programs = {{.kind = StepKind::train, .microbatches = 1, .activations = activations}};
    }
    result.disk_directory = std::filesystem::temp_directory_path();
    result.loss_scaling =
        LossScaleOptions{.initial = std::min(1024.0, most_scale), .growth_interval = 2, .max = most_scale};
    return result;
  }

  // `body(world, engine)` on every rank of a new world with new engines. Rethrows as run_local() does.
  template <class Body>
  void run(const Body& body, std::vector<std::string>* messages = nullptr) const {
    run_local(
        world, {.deadline = std::chrono::seconds(20)},
        [&](Communicator ranks) {
          Engine engine(ranks, toy_units(type), options());
          engine.initialize(toy_fill());
          body(ranks, engine);
        },
        messages);
  }
};

inline void steps(Engine& engine, int begin, int end) {
  for (int step = begin; step < end; ++step) toy_step(engine, {.step = step});
}

// Gives every element of every state another value. Collective.
inline void write_everything(Engine& engine, std::uint32_t seed) {
  const Layout& layout = engine.layout();
  for (ParameterId id = 0; id < layout.parameters(); ++id) {
    if (layout.place(id).home != id) continue;
    for (const StateKind state :
         {StateKind::master, StateKind::parameter, StateKind::moment1, StateKind::moment2}) {
      if ((state == StateKind::parameter) == layout.parameter(id).trainable)
        continue;  // it follows its master
      std::vector<float> values(static_cast<std::size_t>(numel_of(layout.parameter(id).shape)));
      for (float& value : values) value = static_cast<float>((seed = seed * 1664525u + 1013904223u) >> 8);
      engine.write(id, state, 0, values);
    }
  }
}

inline RunState state_at(std::int64_t step) {
  return {.step = step,
          .samples = step * 8,
          .configuration = "[run]\nsteps = 6\n",
          .data = {},
          .tokens = step * 80};
}

inline void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

// A saved run of three steps.
inline void save_three(const ToyRun& run, const std::filesystem::path& folder) {
  run.run([&](Communicator world, Engine& engine) {
    steps(engine, 0, 3);
    save_checkpoint(folder, world, engine, state_at(3));
  });
}

}  // namespace tessera::testing
