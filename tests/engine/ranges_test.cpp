// What an attached profiler is told of a step: a range for each instruction, naming what it does and for
// which unit.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/device/ranges.h"
#include "tessera/program.h"
#include "tests/device/nvtx_injection.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

TEST(Ranges, NameEveryInstructionOfAStep) {
  ASSERT_TRUE(device::profiled());
  std::vector<std::string> expected;
  run_local(1, {}, [&](Communicator world) {
    Engine engine(world, toy_units(DType::bf16), toy_options(1, 3));
    engine.initialize(toy_fill());
    engine.begin(StepKind::train);
    toy_uses(engine, {});
    EXPECT_TRUE(engine.step({.learning_rate = 0.1}).applied);
    const Program& program = engine.program(0);
    for (std::size_t id = 0; id < program.instructions.size(); ++id)
      expected.push_back(describe(program, static_cast<InstructionId>(id)));
  });
  const nvtx_injection::Seen seen = nvtx_injection::seen();
  EXPECT_EQ(seen.domains, std::vector<std::string>{"tessera"});
  EXPECT_EQ(seen.open, 0) << "ranges that did not end";
  EXPECT_TRUE(std::ranges::is_permutation(seen.pushed, expected));
  EXPECT_EQ(std::ranges::count_if(
                seen.pushed,
                [](const std::string& name) { return name.ends_with(" backward of block.1, microbatch 0"); }),
            1);
}

}  // namespace
}  // namespace tessera::testing
