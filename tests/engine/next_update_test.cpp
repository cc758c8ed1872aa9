// Updates that are the next step's: what is seen between steps, and what follows on a step that left some.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "tessera/checkpoint.h"
#include "tessera/device.h"
#include "tessera/program.h"
#include "tests/engine/failing.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

EngineOptions options_of(int world, UpdateWhen update, const Offload& offload, int stage = 2) {
  EngineOptions options = toy_options(world, stage);
  options.programs = {
      {.kind = StepKind::train}, {.kind = StepKind::train, .microbatches = 2}, {.kind = StepKind::evaluate}};
  options.strategy.update = update;
  options.strategy.offload = offload;
  options.clip.max_norm = 0.1;
  options.debug.poison = true;
  options.disk_directory = std::filesystem::temp_directory_path();
  return options;
}

std::vector<Offload> offloads() {
  return {{.states = Space::host},
          {.states = Space::disk},
          {.states = Space::host, .states_on_device = 0.5},
          {.states = Space::disk, .staged = 1}};
}

// A history of steps, each followed by what it is called; `after` sees the engine between them.
void run_history(Engine& engine, const std::function<void(const std::string&)>& after) {
  const auto spoilt = [](const GradientAt& at) {
    return at.parameter == kBlockWeight && at.index == 5 ? std::numeric_limits<float>::quiet_NaN()
                                                         : toy_gradient(at);
  };
  const auto step = [&](const std::string& name, const ToyStep& of, bool applied = true) {
    EXPECT_EQ(toy_step(engine, of).applied, applied) << name;
    after(name);
  };
  step("first", {.step = 0});
  step("second, at another rate", {.step = 1, .learning_rate = 0.02});
  step("of two microbatches", {.step = 2, .microbatches = 2});
  step("of one again", {.step = 3});
  step("not finite", {.step = 4, .gradient = spoilt}, false);
  step("behind one that was skipped", {.step = 5});
  engine.begin(StepKind::train);
  EXPECT_EQ(engine.abandon().reason, SkipReason::abandoned);
  after("abandoned");
  step("behind an abandoned one", {.step = 6});
  engine.begin(StepKind::evaluate);
  toy_uses(engine, {}, StepKind::evaluate);
  EXPECT_EQ(engine.step({.weight = 2}).step, engine.steps_applied());
  after("an evaluation");
  step("behind an evaluation", {.step = 7});
}

// All states after the history, or after each of its steps.
std::vector<std::vector<float>> states_of(int world, const EngineOptions& options, bool look) {
  std::vector<std::vector<float>> seen;
  run_local(world, kBlocking, [&](Communicator comm) {
    Engine engine(comm, toy_units(DType::bf16), options);
    engine.initialize(toy_fill());
    const auto keep = [&] {
      std::vector<float> all = read_everything(engine);
      if (comm.rank() == 0) seen.push_back(std::move(all));
    };
    run_history(engine, [&](const std::string&) {
      if (look) keep();
    });
    if (!look) keep();
  });
  return seen;
}

TEST(NextUpdate, ComesBeforeWhateverFollows) {
  for (const int world : {1, 2})
    for (const int stage : {0, 1, 2, 3})
      for (const Offload& offload : offloads()) {
        const auto decided = states_of(world, options_of(world, UpdateWhen::decided, {}, stage), true);
        ASSERT_EQ(decided.size(), 10u);
        const EngineOptions options = options_of(world, UpdateWhen::next, offload, stage);
        EXPECT_EQ(states_of(world, options, true), decided) << "world " << world << " stage " << stage;
        const auto unseen = states_of(world, options, false);
        EXPECT_EQ(unseen.back(), decided.back()) << "world " << world << " stage " << stage;
      }
}

// A step of the same program has it in itself.
TEST(NextUpdate, WaitsForTheNextStep) {
  run_local(1, kBlocking, [&](Communicator world) {
    int updates = 0;
    EngineOptions options = options_of(1, UpdateWhen::next, {.states = Space::host});
    options.debug.delay_us = [&](const Program&, const Instruction& instruction) {
      updates += instruction.op == Opcode::update ? 1 : 0;
      return 0.0;
    };
    options.debug.strict_order = true;
    Engine engine(world, toy_units(DType::bf16), options);
    engine.initialize(toy_fill());
    const int flats = static_cast<int>(
        std::ranges::count_if(engine.layout().flats(), [](const Flat& flat) { return flat.trainable; }));
    EXPECT_TRUE(toy_step(engine, {.step = 0}).applied);
    EXPECT_EQ(updates, 0);
    EXPECT_EQ(engine.steps_applied(), 1);
    EXPECT_TRUE(toy_step(engine, {.step = 1}).applied);
    EXPECT_EQ(updates, flats);
    engine.finish_updates();
    EXPECT_EQ(updates, 2 * flats);
    engine.finish_updates();
    EXPECT_EQ(updates, 2 * flats);
    engine.begin(StepKind::train);
    engine.abandon();
    EXPECT_EQ(updates, 2 * flats);
    // What was left is dropped with the states that it was of.
    EXPECT_TRUE(toy_step(engine, {.step = 2}).applied);
    engine.initialize(toy_fill());
    engine.finish_updates();
    EXPECT_EQ(updates, 2 * flats);
  });
}

TEST(NextUpdate, LeavesNothingInMemory) {
  for (const Offload& offload : offloads())
    run_local(2, kBlocking, [&](Communicator world) {
      Engine engine(world, toy_units(DType::bf16), options_of(2, UpdateWhen::next, offload));
      engine.initialize(toy_fill());
      const auto alive = [&] {
        std::int64_t bytes = 0;
        for (const Space space : {Space::device, Space::host}) bytes += engine.bytes(space).current_total();
        return bytes;
      };
      const std::int64_t before = alive();
      toy_step(engine, {.step = 0});
      EXPECT_EQ(alive(), before);
      engine.finish_updates();
      EXPECT_EQ(alive(), before);
      toy_step(engine, {.step = 1});
      EXPECT_EQ(alive(), before);
    });
}

// These are one rank's alone, and cannot do what all must.
TEST(NextUpdate, BuffersAreRefusedUntilItIsDone) {
  const auto refused = [](const std::function<void(Engine&)>& body) {
    const std::string message = run_failing(options_of(1, UpdateWhen::next, {.states = Space::host}),
                                            [&](Engine& engine, int) {
                                              toy_step(engine, {});
                                              body(engine);
                                            })[0]
                                    .message;
    EXPECT_NE(message.find("finish_updates()"), std::string::npos) << message;
  };
  std::vector<std::byte> bytes(1 << 16);
  const auto of = [&](Engine& engine) {
    return std::span(bytes).first(static_cast<std::size_t>(engine.persistent_bytes(0, StateKind::moment1)));
  };
  refused([&](Engine& engine) { engine.read_persistent(0, StateKind::moment1, 0, of(engine)); });
  refused([&](Engine& engine) { engine.write_persistent(0, StateKind::moment1, 0, of(engine)); });
  refused([&](Engine& engine) { engine.persistent(0, StateKind::moment1); });
}

TEST(NextUpdate, IsInWhatIsSaved) {
  const TemporaryFolder folder;
  const Offload on_host{.states = Space::host};
  std::vector<float> expected, resumed;
  run_local(2, kBlocking, [&](Communicator world) {
    Engine engine(world, toy_units(DType::bf16), options_of(2, UpdateWhen::next, on_host));
    engine.initialize(toy_fill());
    toy_step(engine, {.step = 0});
    save_checkpoint(folder.file("saved"), world, engine, {.step = 1, .configuration = {}});
    toy_step(engine, {.step = 1});
    toy_step(engine, {.step = 2});
    const std::vector<float> all = read_everything(engine);
    if (world.rank() == 0) expected = all;
    toy_step(engine, {.step = 9});  // what it leaves is not of what is loaded
    load_checkpoint(folder.file("saved"), world, engine);
    toy_step(engine, {.step = 1});
    toy_step(engine, {.step = 2});
    const std::vector<float> again = read_everything(engine);
    if (world.rank() == 0) resumed = again;
  });
  EXPECT_EQ(resumed, expected);
}

TEST(NextUpdate, NeedsStatesOffTheDevice) {
  run_local(1, kBlocking, [&](Communicator world) {
    try {
      Engine(world, toy_units(DType::bf16), options_of(1, UpdateWhen::next, {}));
      FAIL() << "accepted";
    } catch (const UsageError& error) {
      const std::string message = error.what();
      for (const char* part : {"update is next", "offload.states is device", "must be host or disk"})
        EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  });
}

}  // namespace
}  // namespace tessera::testing
