// Arguments that mean nothing: each is refused by name and value, and nothing is done.
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "tessera/budget.h"
#include "tessera/pipeline.h"
#include "tessera/program.h"
#include "tessera/step_spec.h"
#include "tests/engine/failing.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

using std::chrono::milliseconds;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

Engine make_engine(const EngineOptions& options) {
  return Engine(make_local_world(1)[0], toy_units(DType::fp32), options);
}
std::string refused_options(const std::function<void(EngineOptions&)>& change) {
  EngineOptions options = toy_options(1, 0);
  change(options);
  return refusal([&] { make_engine(options); });
}

TEST(Misuse, RangesThatOverflow) {
  for (const int stage : {0, 3})
    for (const bool write : {false, true})
      for (const std::int64_t begin : {kMost - 3, kMost, std::int64_t{510}}) {
        const std::vector<Fate> fates = run_failing(toy_options(2, stage), [&](Engine& engine, int) {
          std::vector<float> values(11);
          if (write)
            engine.write(kEmbedWeight, StateKind::master, begin, values);
          else
            engine.read(kEmbedWeight, StateKind::master, begin, values);
        });
        for (const Fate& fate : fates) {
          EXPECT_EQ(fate.kind, Fate::Kind::usage) << fate.message;
          expect_words(fate.message, {"11 elements from " + std::to_string(begin), "has 520"});
        }
      }
}

TEST(Misuse, NumbersOfWhatDoesNotExist) {
  Engine engine = make_engine(toy_options(1, 0));
  for (const int number : {-5, 99, 9999}) {
    const std::string text = std::to_string(number);
    expect_words(refusal([&] { engine.program(number); }), {"program: " + text, "0 to 0"});
    expect_words(refusal([&] { engine.persistent_bytes(number, StateKind::master); }),
                 {"flat " + text, "0 to"});
    expect_words(refusal([&] { engine.persistent(number, StateKind::master); }), {"flat " + text, "0 to"});
    Engine reading = make_engine(toy_options(1, 0)), writing = make_engine(toy_options(1, 0));
    expect_words(refusal([&] { reading.read_persistent(number, StateKind::master, 0, {}); }),
                 {"flat " + text});
    expect_words(refusal([&] { writing.write_persistent(number, StateKind::master, 0, {}); }),
                 {"flat " + text});
  }
  const std::int64_t held = engine.persistent_bytes(0, StateKind::moment1);
  for (const std::int64_t offset : {std::int64_t{-4}, held - 3, held + 1}) {
    std::vector<std::byte> bytes(4);
    Engine reading = make_engine(toy_options(1, 0)), writing = make_engine(toy_options(1, 0));
    for (const std::string& message :
         {refusal([&] { reading.read_persistent(0, StateKind::moment1, offset, bytes); }),
          refusal([&] { writing.write_persistent(0, StateKind::moment1, offset, bytes); })})
      expect_words(message, {"bytes [" + std::to_string(offset) + ", ", "has " + std::to_string(held)});
  }
  engine.initialize(toy_fill());
  engine.begin(StepKind::train);
  UnitLease lease = engine.use(kEmbed, Pass::forward);
  for (const BufferId buffer : {-5, 9999})
    expect_words(refusal([&] { engine.address(buffer); }), {"buffer " + std::to_string(buffer), "0 to"});
  lease.end();
}

TEST(Misuse, Transfers) {
  Engine engine = make_engine(toy_options(1, 0));
  char here = 0;
  expect_words(refusal([&] { engine.transfer(nullptr, nullptr, 10); }), {"transfer: to is null", "10 bytes"});
  expect_words(refusal([&] { engine.transfer(&here, nullptr, 1); }), {"transfer: from is null"});
  expect_words(refusal([&] { engine.transfer(&here, &here, -10); }), {"transfer: bytes is -10"});
  EXPECT_NO_THROW(engine.transfer(nullptr, nullptr, 0));
  expect_words(refusal([&] { engine.upload(&here, nullptr, 1); }), {"upload: from is null", "1 bytes"});
  EXPECT_NO_THROW(engine.upload(nullptr, nullptr, 0));
}

TEST(Misuse, CallsAtTheWrongTime) {
  Engine engine = make_engine(toy_options(1, 0));
  engine.initialize(toy_fill());
  expect_words(refusal([&] { engine.running(); }), {"running: no step is running"});
  engine.begin(StepKind::train);
  EXPECT_NO_THROW(engine.running());
  expect_words(refusal([&] { engine.set_tracing(true); }), {"set_tracing: a step is running"});
  expect_words(refusal([&] { engine.set_peak_observer({}); }), {"set_peak_observer: a step is running"});
  engine.abandon();
  EXPECT_NO_THROW(engine.set_tracing(true));
  expect_words(refusal([&] { engine.running(); }), {"running: no step is running"});
}

// It costs the call alone: the step goes on, and so does the run.
TEST(Misuse, WhatDoesNotExistLeavesTheEngineAsItWas) {
  for (const int stage : {0, 3})
    run_local(2, kBlocking, [&](Communicator world) {
      Engine engine(world, toy_units(DType::fp32), toy_options(2, stage)),
          other(world.duplicate("other"), toy_units(DType::fp32), toy_options(2, stage));
      std::vector<float> values(11);
      const auto refused = [&](const std::function<void()>& call) { EXPECT_NE(refusal(call), "accepted"); };
      refused([&] { engine.initialize({}); });
      engine.initialize(toy_fill());
      other.initialize(toy_fill());
      refused([&] { engine.read(kEmbedWeight, StateKind::master, 510, values); });
      refused([&] { engine.read(kFrozen, StateKind::moment1, 0, std::span(values).first(1)); });
      refused([&] { engine.write(99, StateKind::master, 0, values); });
      refused([&] { engine.write(kEmbedWeight, StateKind::parameter, 0, values); });
      refused([&] { engine.set_counters({.steps_applied = -1}); });
      expect_words(refusal([&] { engine.begin(StepKind::evaluate, 3); }),
                   {"begin", "evaluate with 3 microbatches", "train with 1 microbatches"});
      expect_words(refusal([&] { engine.begin_program(4); }), {"begin", "program 4"});
      refused([&] {
        std::vector<std::byte> bytes(4);
        engine.write_persistent(0, StateKind::moment1, -4, bytes);
      });
      EXPECT_TRUE(toy_step(other, {}).applied);
      engine.begin(StepKind::train);
      toy_uses(engine, {});
      EXPECT_TRUE(engine
                      .step({.learning_rate = 0.01,
                             .weight = toy_weight(world.rank()),
                             .loss = toy_loss(world.rank(), 0)})
                      .applied);
      std::vector<float> found(520), expected(520);
      engine.read(kEmbedWeight, StateKind::master, 0, found);
      other.read(kEmbedWeight, StateKind::master, 0, expected);
      EXPECT_EQ(found, expected);
    });
}

TEST(Misuse, OptionsThatAreNoEnumerators) {
  const auto expect_named = [](const char* name, const std::function<void(EngineOptions&)>& change) {
    expect_words(refused_options(change), {name, "its enumerators are 0 to"});
  };
  expect_named("device has the value 7", [](EngineOptions& o) { o.device = DeviceType{7}; });
  expect_named("waits.waiting has the value 4", [](EngineOptions& o) { o.waits.waiting = Waiting{4}; });
  expect_named("the kind of one has", [](EngineOptions& o) { o.programs[0].kind = StepKind{9}; });
  expect_named("the pass of a use has", [](EngineOptions& o) { o.order = {{0, Pass{7}}}; });
  expect_named("the edge of a use has", [](EngineOptions& o) { o.order = {{0, Pass::forward, UseEdge{9}}}; });
}

// Whoever goes on without it would report another loss than it had.
TEST(Misuse, LossesAtNoAddress) {
  Engine engine = make_engine(toy_options(1, 0));
  engine.begin(StepKind::train);
  expect_words(refusal([&] { engine.add_loss(nullptr); }), {"add_loss: total is null"});
  expect_words(refusal([&] { engine.skip(kEmbed, Pass::forward); }), {"failed before", "add_loss"});
}

// Nothing can go on that was not there: an evaluation behind a training step, or the first; nor a training
// step.
TEST(Misuse, EvaluationsThatGoOnWithNone) {
  for (const bool trained : {false, true})
    for (const StepKind kind : {StepKind::evaluate, StepKind::train}) {
      EngineOptions options = toy_options(1, 0);
      options.programs = {{.kind = StepKind::train}, {.kind = StepKind::evaluate}};
      Engine engine = make_engine(options);
      engine.initialize(toy_fill());
      if (trained) toy_step(engine, {});
      if (kind == StepKind::train) {
        engine.begin(StepKind::evaluate);
        toy_uses(engine, {}, StepKind::evaluate);
        (void)engine.step({});
      }
      expect_words(refusal([&] { engine.begin(kind, 1, {.continues = true}); }),
                   {"begin: terms.continues is true, which an evaluation may have right behind another one"});
    }
}

// Nor behind one that was given up, or that was of other weights.
TEST(Misuse, EvaluationsThatGoOnWithAnother) {
  const auto refused_behind = [](const std::function<void(Engine&)>& between) {
    EngineOptions options = toy_options(1, 0);
    options.programs = {{.kind = StepKind::train}, {.kind = StepKind::evaluate}};
    Engine engine = make_engine(options);
    engine.initialize(toy_fill());
    engine.begin(StepKind::evaluate);
    toy_uses(engine, {}, StepKind::evaluate);
    (void)engine.step({});
    between(engine);
    expect_words(refusal([&] { engine.begin(StepKind::evaluate, 1, {.continues = true}); }),
                 {"begin: terms.continues is true"});
  };
  refused_behind([](Engine& engine) {
    engine.begin(StepKind::evaluate, 1, {.continues = true});
    engine.abandon();
  });
  refused_behind([](Engine& engine) { engine.initialize(toy_fill()); });
  refused_behind([](Engine& engine) { engine.write(0, StateKind::master, 0, std::vector<float>{1.0f}); });
}

TEST(Misuse, FillsThatAreEmpty) {
  for (const bool identified : {false, true}) {
    Engine engine = make_engine(toy_options(1, 3));
    expect_words(refusal([&] { identified ? engine.initialize(nullptr, 1) : engine.initialize(nullptr); }),
                 {"initialize: fill is empty"});
  }
}

TEST(Misuse, FillsThatThrowAnything) {
  Engine engine = make_engine(toy_options(1, 3));
  EXPECT_THROW(engine.initialize([](ParameterId, std::int64_t, std::span<float>) { throw 5; }), int);
  expect_words(refusal([&] { engine.begin(StepKind::train); }), {"failed before", "initialize"});
}

TEST(Misuse, AFillThatThrowsEndsAllRanksWithItsMessage) {
  std::vector<std::string> messages;
  const auto run = [](Communicator world) {
    Engine engine(world, toy_units(DType::fp32), toy_options(3, 0));
    engine.initialize([&](ParameterId id, std::int64_t begin, std::span<float> values) {
      if (world.rank() == 1 && id == kBlockWeight) throw EnvironmentError("no such weights");
      toy_fill()(id, begin, values);
    });
  };
  EXPECT_THROW(run_local(3, kBlocking, run, &messages), Error);
  ASSERT_EQ(messages.size(), 3u);
  for (const std::string& message : messages) expect_words(message, {"no such weights"});
  expect_words(messages[0], {"rank 1 failed"});
}

TEST(Misuse, ALeaseThatOutlivesItsEngine) {
  std::optional<UnitLease> lease;
  {
    Engine engine = make_engine(toy_options(1, 3));
    engine.initialize(toy_fill());
    engine.begin(StepKind::train);
    lease.emplace(engine.use(kEmbed, Pass::forward));
  }
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { lease->parameter(kEmbedWeight); }, [&] { lease->gradient(kEmbedWeight); },
           [&] { lease->gradient_beta(); }, [&] { lease->unit(); }, [&] { lease->end(); }})
    expect_words(refusal(call), {"the lease's engine was destroyed"});
}

TEST(Misuse, Deadlines) {
  for (const milliseconds wrong : {milliseconds(0), milliseconds(-7), milliseconds::min()}) {
    const std::string is = "deadline is " + std::to_string(wrong.count()) + " ms";
    const std::vector<std::string> words = {is, "1 ms"};
    if (wrong.count() != 0)  // which is the world's
      expect_words(refused_options([&](EngineOptions& options) { options.waits.deadline = wrong; }),
                   {"waits." + is, "1 ms"});
    expect_words(refusal([&] { run_local(1, {.deadline = wrong}, [](Communicator) {}); }), words);
    expect_words(refusal([&] { make_local_world(1, {.deadline = wrong}); }), words);
    expect_words(refusal([&] { make_local_world(1)[0].set_deadline(wrong); }), words);
  }
}

TEST(Misuse, AnEngineHasTheDeadlineOfItsWorldUntilItIsGivenOne) {
  run_local(2, {.deadline = milliseconds(12'345)}, [](Communicator world) {
    EngineOptions options = toy_options(2, 3);
    for (const milliseconds given : {milliseconds(0), milliseconds(54'321)}) {
      options.waits.deadline = given;
      const Engine engine(world, toy_units(DType::fp32), options);
      const milliseconds expected(given.count() == 0 ? 12'345 : 54'321);
      EXPECT_EQ(engine.options().waits.deadline, expected);
      EXPECT_EQ(world.deadline(), expected);
    }
  });
}

TEST(Misuse, DeadlinesBeyondTheClockAreLong) {
  run_local(2, {.deadline = milliseconds::max(), .waiting = Waiting::block}, [](Communicator world) {
    if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(50));
    world.barrier();
    EngineOptions options = toy_options(2, 3);
    options.waits.deadline = milliseconds::max();
    Engine engine(world, toy_units(DType::fp32), options);
    engine.initialize(toy_fill());
    if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(toy_step(engine, {}).applied);
  });
}

TEST(Misuse, MeshesAndChunksThatOverflow) {
  for (const int most : {65536, std::numeric_limits<int>::max()}) {
    const std::string text = std::to_string(most);
    expect_words(refused_options([&](EngineOptions& o) { o.mesh.shard = o.mesh.replicate = most; }),
                 {"replicate " + text, "1048576 or less"});
    expect_words(refusal([&] { Layout(toy_units(DType::fp32), most, most); }), {"1048576 or less"});
    expect_words(refusal([&] {
                   const Mesh mesh{.pipeline = most, .replicate = most};
                   plan_pipeline(Layout(toy_units(DType::fp32), 1), mesh, step_specs({}));
                 }),
                 {"pipeline " + text, "1048576 or less"});
  }
  const int chunks = std::numeric_limits<int>::max();
  expect_words(refusal([&] {
                 Partition(5, 2, {.schedule = PipelineSchedule::interleaved, .chunks = chunks, .cuts = {}});
               }),
               {"2147483647 chunks", "4294967294", "5 units"});
}

TEST(Misuse, UsesAheadBeyondTheStepAreAllOfIt) {
  for (const bool early : {false, true}) {
    std::vector<std::uint64_t> programs;
    for (const int ahead : {1000, std::numeric_limits<int>::max()}) {
      EngineOptions options = toy_options(2, 3);
      options.programs[0].microbatches = 3;
      options.strategy.prefetch = options.strategy.offload.staged = ahead;
      options.strategy.offload.states = Space::host;
      options.strategy.update = early ? UpdateWhen::reduced : UpdateWhen::next;
      const Layout layout(toy_units(DType::bf16), 2);
      programs.push_back(plan_pipeline(layout, options.mesh, step_specs(options))[0].programs[0].hash());
    }
    EXPECT_EQ(programs[0], programs[1]);
  }
}

TEST(Misuse, ThreadsThatNoMachineHas) {
  for (const int threads : {0, 4097, 1 << 30})
    expect_words(refused_options([&](EngineOptions& options) { options.threads_per_rank = threads; }),
                 {"threads_per_rank is " + std::to_string(threads), "1 to 4096"});
}

TEST(Misuse, BudgetsThatOverflow) {
  for (const std::int64_t external : {kMost, std::int64_t{301}})
    expect_words(refused_options([&](EngineOptions& options) {
                   options.budget.device_bytes = 300;
                   options.budget.external_bytes = external;
                 }),
                 {"budget.device_bytes is 300 bytes", "external bytes", std::to_string(external)});
}

TEST(Misuse, BudgetsBelowNothing) {
  const auto expect_named = [](const char* words, const MemoryBudget& budget) {
    expect_words(refused_options([&](EngineOptions& options) { options.budget = budget; }),
                 {words, "it must be 0 or more"});
  };
  expect_named("budget.device_bytes is -1 bytes", {.device_bytes = -1});
  expect_named("budget.host_bytes is -2 bytes", {.host_bytes = -2});
  expect_named("budget.external_bytes is -3 bytes", {.device_bytes = 1, .external_bytes = -3});
}

// On any rank: all are told, and none has updated anything.
TEST(Misuse, InputsOfAStep) {
  struct Wrong {
    StepInputs inputs;
    std::string word;
  };
  for (const Wrong& wrong :
       {Wrong{{.weight = kInfinity}, "weight is inf"}, Wrong{{.weight = kNan}, "weight is nan"},
        Wrong{{.weight = -1.0}, "weight is -1"}, Wrong{{.learning_rate = -1.0}, "learning_rate is -1"},
        Wrong{{.learning_rate = kInfinity}, "learning_rate is inf"},
        Wrong{{.learning_rate = kNan}, "learning_rate is nan"},
        Wrong{{.learning_rate = 1e300}, "learning_rate is 1e+300"}}) {
    const std::vector<Fate> fates = run_failing(toy_options(2, 1), [&](Engine& engine, int rank) {
      engine.begin(StepKind::train);
      toy_uses(engine, {});
      (void)engine.step(rank == 1 ? wrong.inputs : StepInputs{.learning_rate = 0.1});
    });
    EXPECT_EQ(fates[1].kind, Fate::Kind::usage) << fates[1].message;
    expect_words(fates[1].message, {"step: " + wrong.word, "it must be 0 to"});
    expect_blames(fates[0], 1);
    expect_words(fates[0].message, {wrong.word});
  }
}

// Whose sums hold more than the others' would make the loss of all another.
TEST(Misuse, EvaluationsThatGoOnOnOneRankOnly) {
  EngineOptions options = toy_options(2, 0);
  options.programs = {{.kind = StepKind::train}, {.kind = StepKind::evaluate}};
  for (const Fate& fate : run_failing(options, [&](Engine&engine, int rank) {
         engine.initialize(toy_fill());
         for (const bool second : {false, true}) {
           engine.begin(StepKind::evaluate, 1, {.continues = second && rank == 1});
           toy_uses(engine, {}, StepKind::evaluate);
           (void)engine.step({});
         }
       }))
    expect_words(fate.message, {"program", "rank 1"});
}

// What the device adds up is known at the decision only.
TEST(Misuse, WeightsOfTheDeviceBelowNothing) {
  const LossTotal total{.sum = 1.0, .counted = -5};
  for (const Fate& fate : run_failing(toy_options(2, 0), [&](Engine&engine, int rank) {
         engine.initialize(toy_fill());
         engine.begin(StepKind::train);
         if (rank == 1) engine.add_loss(&total);
         toy_uses(engine, {});
         (void)engine.step({.learning_rate = 0.1, .weight = 2.0});
       }))
    expect_words(fate.message,
                 {"step: rank 1's weight is -3 with what add_loss added; it must be 0 or more"});
}

// What an update computes with is the rate times its group's factor.
TEST(Misuse, RatesThatAFactorMakesInfinite) {
  for (const bool early : {false, true}) {
    EngineOptions options = toy_options(1, 0);
    options.optimizer.groups[1].learning_rate_factor = 10.0;
    if (early) options.strategy.update = UpdateWhen::reduced;
    Engine engine = make_engine(options);
    engine.initialize(toy_fill());
    expect_words(refusal([&] {
                   engine.begin(StepKind::train, 1, {.learning_rate = 1e38, .weight = 1.0});
                   toy_uses(engine, {});
                   (void)engine.step({.learning_rate = 1e38});
                 }),
                 {"learning_rate is 1e+38; it must be 0 to 3.4e+37"});
  }
}

TEST(Misuse, TermsOfAStep) {
  EngineOptions options = toy_options(1, 0);
  options.strategy.update = UpdateWhen::reduced;
  for (const double wrong : {-1.0, kNan, 1e300}) {
    Engine engine = make_engine(options);
    engine.initialize(toy_fill());
    expect_words(refusal([&] { engine.begin(StepKind::train, 1, {.learning_rate = wrong, .weight = 1.0}); }),
                 {"begin: terms.learning_rate is ", "it must be 0 to"});
  }
}

// Each rank's weight is well, their sum is not: no rank updates, and all say why.
TEST(Misuse, WeightsWhoseSumIsInfinite) {
  for (const Space states : {Space::device, Space::host}) {  // decided where the device updates, and before
    EngineOptions options = toy_options(2, 1);
    options.strategy.offload.states = states;
    run_local(2, kBlocking, [&](Communicator world) {
      Engine engine(world, toy_units(DType::fp32), options);
      engine.initialize(toy_fill());
      const std::vector<float> before = read_everything(engine);
      engine.begin(StepKind::train);
      toy_uses(engine, {});
      const StepResult result =
          engine.step({.learning_rate = 0.1, .weight = std::numeric_limits<double>::max()});
      EXPECT_FALSE(result.applied);
      EXPECT_EQ(result.reason, SkipReason::not_finite);
      EXPECT_EQ(result.first_nonfinite, "");
      EXPECT_EQ(result.weight, kInfinity);
      EXPECT_EQ(read_everything(engine), before);
    });
  }
}

TEST(Misuse, RanksThatRunDifferentProgramsAreTold) {
  EngineOptions options = toy_options(2, 0);
  options.programs.push_back({.kind = StepKind::evaluate});
  const std::vector<Fate> fates = run_failing(options, [](Engine& engine, int rank) {
    const StepKind kind = rank == 0 ? StepKind::train : StepKind::evaluate;
    engine.begin(kind);
    toy_uses(engine, {}, kind);
    (void)engine.step({.learning_rate = 0.1});
  });
  std::string all;
  for (const Fate& fate : fates) {
    EXPECT_EQ(fate.kind, Fate::Kind::communication) << fate.message;
    all += fate.message + "\n";
  }
  expect_words(all, {"(train)", "(evaluate)"});
}

TEST(Misuse, ParametersOfOneShardOffTheDeviceOverReplicas) {
  const Layout layout(toy_units(DType::fp32), 1, 2);
  for (const Space space : {Space::host, Space::disk}) {
    EngineOptions options = toy_options(1, 3);
    options.mesh.replicate = 2;
    options.strategy.state_over_replicas = options.strategy.parameters_over_replicas = true;
    options.strategy.offload.parameters = space;
    expect_words(refusal([&] { plan_pipeline(layout, options.mesh, step_specs(options)); }),
                 {"strategy.parameters_over_replicas",
                  "strategy.offload.parameters is " + std::string(name_of(space)), "mesh.shard is 1"});
  }
}

}  // namespace
}  // namespace tessera::testing
