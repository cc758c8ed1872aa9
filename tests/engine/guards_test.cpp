// Guards between the buffers of a plan: what is written beyond a buffer fails the step, and nothing else
// does.
#include <gtest/gtest.h>

#include "tests/engine/matrix.h"
#include "tests/engine/toy.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

// Trains a step in which one backward writes a byte `where` says, and gives what the step said.
std::string step_that_writes(bool strict_order,
                             const std::function<std::byte*(UnitLease&, const Layout&)>& where) {
  EngineOptions options = toy_options(1, 0);
  options.debug = {.strict_order = strict_order, .guards = true};
  Engine engine(make_local_world(1)[0], toy_units(DType::bf16), options);
  engine.initialize(toy_fill());
  EXPECT_TRUE(toy_step(engine, {.step = 0}).applied) << "nothing wrong was written yet";
  return refusal<Error>([&] {
    engine.begin(StepKind::train);
    for (UnitId unit = 0; unit < engine.layout().units().count(); ++unit)
      engine.use(unit, Pass::forward).end();
    for (UnitId unit = engine.layout().units().count() - 1; unit >= 0; --unit) {
      UnitLease lease = engine.use(unit, Pass::backward);
      write_gradients(engine, lease, {.step = 1});
      if (unit == kBlock1) *where(lease, engine.layout()) ^= std::byte{1};
      lease.end();
    }
    static_cast<void>(engine.step({.weight = 1}));
  });
}

TEST(Guards, NameWhatWasWrittenBehindABuffer) {
  for (const bool strict_order : {false, true}) {
    const std::string said = step_that_writes(strict_order, [](UnitLease& lease, const Layout& layout) {
      const ParameterId last = layout.first_parameter(kBlock1) + 1;
      const Flat& flat = layout.flat(layout.place(last).flat);
      const TensorView gradient = lease.gradient(last);
      const auto begin =
          static_cast<std::byte*>(gradient.data) - layout.place(last).offset * bytes_of(gradient.dtype);
      return begin + flat.padded_numel * bytes_of(gradient.dtype) + 6;
    });
    expect_words(said, {"guards: byte 7 behind the end of buffer '", "gradient", "bytes of device memory",
                        "found behind #", "backward of block.1"});
  }
}

TEST(Guards, NameWhatWasWrittenBeforeABuffer) {
  const std::string said = step_that_writes(false, [](UnitLease& lease, const Layout& layout) {
    const ParameterId last = layout.first_parameter(kBlock1) + 1;
    const TensorView gradient = lease.gradient(last);
    return static_cast<std::byte*>(gradient.data) - layout.place(last).offset * bytes_of(gradient.dtype) - 2;
  });
  expect_words(said, {"guards: byte 2 before buffer '", "gradient", "backward of block.1"});
}

// Everything that an engine does itself keeps within its buffers, and the plan's other addresses change no
// bit.
TEST(Guards, FindNothingAndChangeNoBit) {
  const auto expect_same = [](RunConfig run) {
    run.steps = 2;
    const RunResult expected = run_training(run);
    for (const bool poison : {false, true}) {
      run.guards = true;
      run.poison = poison;
      EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
    }
  };
  for (const Family family : {Family::gpt2, Family::llama, Family::mlp})
    for (const DType dtype : {DType::fp32, DType::bf16})
      expect_same({.family = family, .world = 2, .stage = 3, .dtype = dtype, .recompute = Recompute::full});
  for (const int stage : {0, 1, 2}) expect_same({.world = 3, .stage = stage, .dtype = DType::bf16});
  expect_same({.world = 2, .replicate = 2, .state_over_replicas = true, .stage = 3});
  expect_same({.pipeline = 2, .stage = 1, .microbatches = 3});
  expect_same({.tensor = 2, .stage = 1, .dtype = DType::bf16, .heads = 4});
  for (const Space states : {Space::host, Space::disk})
    expect_same({.stage = 3, .dtype = DType::bf16, .offload = {.states = states, .parameters = states}});
}

}  // namespace
}  // namespace tessera::testing
