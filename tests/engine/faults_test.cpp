// A rank that throws or stops answering in step 3: the others end within the deadline, naming it.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tessera/program.h"
#include "tessera/step_spec.h"
#include "tests/engine/failing.h"
#include "tests/program/small_graph.h"

namespace tessera::testing {
namespace {

struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where in its third step rank 1 goes wrong.
struct Where {
  int stage = 3;
  UnitId unit = kBlock0;
  Pass pass = Pass::forward;
};

class Faults : public ::testing::TestWithParam<Where> {
 protected:
  // Two steps; in the third, `wrong` runs inside the lease of GetParam().
  void run_steps(Engine& engine, bool goes_wrong, const std::function<void()>& wrong) const {
    for (int step = 0; step < 2; ++step) EXPECT_TRUE(toy_step(engine, {.step = step}).applied);
    if (goes_wrong) {
      engine.begin(StepKind::train);
      for (UnitId unit = 0; unit <= kHead; ++unit) use(engine, unit, Pass::forward, wrong);
      for (UnitId unit = kHead; unit >= 0; --unit) use(engine, unit, Pass::backward, wrong);
      (void)engine.step({.learning_rate = 0.01});
    } else {
      toy_step(engine, {.step = 2});
    }
  }
  void use(Engine& engine, UnitId unit, Pass pass, const std::function<void()>& wrong) const {
    UnitLease lease = engine.use(unit, pass);
    if (unit == GetParam().unit && pass == GetParam().pass) wrong();
    if (pass == Pass::backward) write_gradients(engine, lease, {.step = 2});
    lease.end();
  }
};

TEST_P(Faults, ARankThatThrowsEndsTheOthersAtOnce) {
  const IdVector<Fate> fates = run_failing(toy_options(3, GetParam().stage), [&](Engine& engine, int rank) {
    run_steps(engine, rank == 1, [] { throw Broken("the disk is on fire"); });
  });
  EXPECT_EQ(fates[1].kind, Fate::Kind::other);
  EXPECT_EQ(fates[1].message, "the disk is on fire");
  for (int rank : {0, 2}) expect_blames(fates[rank], 1);
}

TEST_P(Faults, RunLocalRethrowsTheCause) {
  IdVector<std::string> messages;
  EXPECT_THROW(run_local(
                   3, {.deadline = 2 * kDeadline, .waiting = Waiting::block},
                   [&](Communicator world) {
                     Engine engine(world, toy_units(DType::fp32), toy_options(3, GetParam().stage));
                     engine.initialize(toy_fill());
                     run_steps(engine, world.rank() == 1, [] { throw Broken("the disk is on fire"); });
                   },
                   &messages),
               Broken);
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[1], "the disk is on fire");
  for (int rank : {0, 2})
    EXPECT_NE(messages[rank].find("rank 1 failed"), std::string::npos) << messages[rank];
}

TEST_P(Faults, ARankThatStallsIsNamedWithinTheDeadline) {
  std::atomic<int> told{0};
  const IdVector<Fate> fates = run_failing(toy_options(3, GetParam().stage), [&](Engine& engine, int rank) {
    const Fate fate = fate_of([&] {
      run_steps(engine, rank == 1, [&] {
        const auto end = std::chrono::steady_clock::now() + 2 * kDeadline;
        while (told.load() < 2 && std::chrono::steady_clock::now() < end)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    });
    ++told;
    if (fate.kind == Fate::Kind::communication) throw CommunicationError(fate.message, fate.culprit);
    throw Error(fate.message);
  });
  for (int rank : {0, 2}) {
    const Fate& fate = fates[rank];
    EXPECT_EQ(fate.kind, Fate::Kind::communication) << fate.message;
    EXPECT_EQ(fate.culprit, 1) << fate.message;
    for (const char* word : {"rank 1", " of unit '", "no answer from rank 1 within 2.0 s", "#"})
      EXPECT_NE(fate.message.find(word), std::string::npos) << fate.message;
    EXPECT_TRUE(fate.message.find("all_gather") != std::string::npos ||
                fate.message.find("reduce_scatter") != std::string::npos)
        << fate.message;
    EXPECT_LT(fate.after, kDeadline + kGrace) << fate.message;
  }
  // When it wakes it learns that it was given up.
  EXPECT_EQ(fates[1].kind, Fate::Kind::communication) << fates[1].message;
}

INSTANTIATE_TEST_SUITE_P(Step3, Faults,
                         ::testing::Values(Where{3, kBlock0, Pass::forward},
                                           Where{3, kBlock1, Pass::backward},
                                           Where{0, kBlock0, Pass::backward}),
                         [](const ::testing::TestParamInfo<Where>& made) {
                           return "stage" + std::to_string(made.param.stage) + "_" +
                                  std::string(name_of(made.param.pass));
                         });

// Of four tensor ranks one goes wrong ahead of an exchange, which the others wait for.
std::vector<Fate> fates_in_an_exchange(const std::function<void()>& wrong) {
  EngineOptions options = toy_options(1, 0);
  options.mesh = {.tensor = 4};
  options.programs = {{.kind = StepKind::train,
                       .microbatches = 1,
                       .activations = {.units = {small_split_graph(4), small_split_graph(4)}}}};
  return run_failing(options, split_chain(2), [&](Engine& engine, int rank) {
    engine.begin(StepKind::train);
    for (const Instruction& instruction : engine.running().instructions) {
      if (instruction.op != Opcode::use) continue;
      UnitLease lease = engine.use(instruction.unit, instruction.pass);
      const bool here = instruction.unit == 1 && instruction.pass == Pass::forward && instruction.part == 0;
      if (rank == 1 && here) wrong();
      lease.end();
    }
  });
}

TEST(ExchangeFaults, ARankThatThrowsEndsTheOthersAtOnce) {
  const IdVector<Fate> fates = fates_in_an_exchange([] { throw Broken("the disk is on fire"); });
  EXPECT_EQ(fates[1].message, "the disk is on fire");
  for (const int rank : {0, 2, 3}) expect_blames(fates[rank], 1);
}

TEST(ExchangeFaults, ARankThatStallsIsNamedWithinTheDeadline) {
  const IdVector<Fate> fates =
      fates_in_an_exchange([] { std::this_thread::sleep_for(kDeadline + kGrace / 2); });
  for (const int rank : {0, 2, 3}) {
    const Fate& fate = fates[rank];
    EXPECT_EQ(fate.kind, Fate::Kind::communication) << fate.message;
    EXPECT_EQ(fate.culprit, 1) << fate.message;
    for (const char* word : {"of unit 'block.1' on 'exchange'", "no answer from rank 1 within 2.0 s"})
      EXPECT_NE(fate.message.find(word), std::string::npos) << fate.message;
    EXPECT_LT(fate.after, kDeadline + kGrace) << fate.message;
  }
}

TEST(Destruction, AnEngineDestroyedWithinAStepEndsTheOthers) {
  IdVector<Fate> fates(2);
  EXPECT_THROW(run_local(2, {.deadline = 2 * kDeadline, .waiting = Waiting::block},
                         [&](Communicator world) {
                           EngineOptions options = toy_options(2, 3);
                           options.waits.deadline = kDeadline;
                           Engine engine(world, toy_units(DType::fp32), options);
                           engine.initialize(toy_fill());
                           if (world.rank() == 1) return engine.begin(StepKind::train);
                           fates[0] = fate_of([&] { toy_step(engine, {}); });
                         }),
               CommunicationError);
  EXPECT_EQ(fates[0].kind, Fate::Kind::communication) << fates[0].message;
  EXPECT_EQ(fates[0].culprit, 1) << fates[0].message;
  EXPECT_NE(fates[0].message.find("in the middle of a step"), std::string::npos) << fates[0].message;
}

TEST(Destruction, AnExceptionBetweenUsesIsTold) {
  IdVector<Fate> fates(2);
  try {
    run_local(2, {.deadline = 2 * kDeadline, .waiting = Waiting::block}, [&](Communicator world) {
      EngineOptions options = toy_options(2, 3);
      options.waits.deadline = kDeadline;
      Engine engine(world, toy_units(DType::fp32), options);
      engine.initialize(toy_fill());
      if (world.rank() == 1) {
        engine.begin(StepKind::train);
        throw std::runtime_error("no more data");
      }
      fates[0] = fate_of([&] { toy_step(engine, {}); });
    });
    FAIL() << "no rank failed";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "no more data");
  }
  EXPECT_EQ(fates[0].culprit, 1) << fates[0].message;
  EXPECT_NE(fates[0].message.find("in the middle of a step, by an exception"), std::string::npos)
      << fates[0].message;
}

TEST(SetUp, UnequalEnginesAreRefusedOnAllRanks) {
  const std::string kNamed[] = {
      "rank 1 was given other units or options than rank 0: clip.max_norm is 1, and 0 on rank 0;",
      "optimizer.groups[0].weight_decay is 0.5, and the optimizer's on rank 0;",
      "strategy.placements.parameters is sharded, and replicated on rank 0;",
      "parameter 'other' of unit 'block.0' is [33, 17] in fp32, in group 0, where rank 0 has: parameter '",
      "the number of units is 4, and 5 on rank 0;",
      "unit 0 is 'embed', read in forward only, and 'embed' on rank 0;",
      "order is of 10 uses, and the default on rank 0;",
      "programs[0].activations.batch_bytes is 64, and 0 on rank 0;",
      "parameter 'a is b' of unit 'block.0' is [33, 17] in fp32, in group 0, where rank 0 has: parameter '"};
  for (std::size_t what = 0; what < std::size(kNamed); ++what) {
    IdVector<Fate> fates(2);
    run_local(2, kBlocking, [&](Communicator world) {
      EngineOptions options = toy_options(2, 2);
      std::vector<UnitSpec> units = toy_units(DType::fp32);
      if (world.rank() == 1) {
        if (what == 0) options.clip.max_norm = 1.0;
        if (what == 1) options.optimizer.groups[0].weight_decay = 0.5;
        if (what == 2) options.strategy.placements = Placements::of_stage(3);
        if (what == 3) units[1].parameters[0].name = "other";
        if (what == 4) units.pop_back();
        if (what == 5) units[0].read_in_forward_only = true;
        if (what == 6) options.order = default_order(static_cast<int>(units.size()), {});
        if (what == 7) options.programs[0].activations.batch_bytes = 64;
        if (what == 8) units[1].parameters[0].name = "a is b";
      }
      fates[world.rank()] = fate_of([&] { Engine(world, units, options); });
    });
    for (const Fate& fate : fates) {
      EXPECT_EQ(fate.kind, Fate::Kind::usage) << fate.message;
      EXPECT_NE(fate.message.find(kNamed[what]), std::string::npos) << fate.message;
    }
  }
}

// Engines of half a world each, of which the second's ranks disagree.
TEST(Subgroups, RanksAreNamedAsInTheWorld) {
  for (const bool at_set_up : {true, false}) {
    IdVector<Fate> fates(4);
    const auto run = [&](Communicator world) {
      const bool second = world.rank() >= 2, odd = world.rank() == 3;
      Communicator half = world.subgroup(second ? std::vector{2, 3} : std::vector{0, 1}, "half");
      EngineOptions options = toy_options(2, 2);
      if (at_set_up && odd) options.clip.max_norm = 1.0;
      fates[world.rank()] = fate_of([&] {
        Engine engine(half, toy_units(DType::fp32), options);
        engine.initialize(toy_fill());
        if (second) toy_step(engine, {.learning_rate = odd ? 0.2 : 0.1});
      });
    };
    if (at_set_up)
      run_local(4, kBlocking, run);
    else
      EXPECT_THROW(run_local(4, kBlocking, run), Error);
    for (const std::size_t rank : {2, 3}) {
      EXPECT_EQ(fates[rank].culprit, at_set_up ? -1 : 3) << fates[rank].message;
      EXPECT_NE(fates[rank].message.find(at_set_up ? "rank 3 was given other units or options than rank 2"
                                                   : "rank 3 has learning rate 0.2, rank 2 has 0.1"),
                std::string::npos)
          << fates[rank].message;
    }
  }
}

// In every bit.
TEST(States, UnequalIdentitiesOfInitialValuesAreNamed) {
  for (const std::uint64_t other : {1ULL, 2047ULL, 2048ULL, 1ULL << 63})
    for (const Fate& fate : run_failing(toy_options(2, 3), [&](Engine&engine, int rank) {
           engine.initialize(toy_fill(), rank == 0 ? 0 : other);
         })) {
      EXPECT_EQ(fate.culprit, 1);
      EXPECT_NE(fate.message.find("rank 1 was given other initial values than rank 0:"), std::string::npos)
          << fate.message;
    }
}

TEST(States, RangesThatDifferAreNamed) {
  for (const Fate& fate : run_failing(toy_options(2, 3), [&](Engine&engine, int rank) {
         engine.initialize(toy_fill());
         std::vector<float> values(1);
         engine.read(0, StateKind::master, rank, values);
       }))
    EXPECT_NE(fate.message.find("1 elements from 1 on of master of embed.weight"), std::string::npos)
        << fate.message;
}

TEST(States, UnequalInitialValuesAreNamed) {
  const auto seeded = [](int seed) {
    return [seed](ParameterId id, std::int64_t begin, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] =
            static_cast<float>(id + seed) + 0.01f * static_cast<float>(begin + static_cast<std::int64_t>(i));
    };
  };
  for (const int stage : {0, 3})
    for (const bool by_write : {false, true}) {
      const IdVector<Fate> fates = run_failing(toy_options(2, stage), [&](Engine& engine, int rank) {
        engine.initialize(seeded(by_write ? 5 : 5 + rank));
        ASSERT_TRUE(by_write);
        const float value = 0.5f + static_cast<float>(rank);
        engine.write(0, StateKind::master, 1, {&value, 1});
        engine.begin(StepKind::train);
        toy_uses(engine, {});
        (void)engine.step({.learning_rate = 0.1});
      });
      for (const Fate& fate : fates) {
        EXPECT_EQ(fate.kind, Fate::Kind::communication) << fate.message;
        EXPECT_EQ(fate.culprit, 1);
        EXPECT_NE(fate.message.find(by_write ? "element 1 is 0.5 on rank 0 and 1.5 on rank 1"
                                             : "rank 1 was given other initial values than rank 0:"),
                  std::string::npos)
            << fate.message;
      }
    }
}

// Also in elements that no other rank asked for as a sample, wherever several ranks hold them.
TEST(States, CopiesThatDifferAnywhereAreNamed) {
  struct Copies {
    Mesh mesh;
    int stage, differs, first;  // ranks
    bool over_replicas = false;
  };
  const Mesh replicas{.replicate = 2, .shard = 2}, pipeline{.pipeline = 2, .shard = 2};
  for (const Copies& copies :
       {Copies{{.shard = 2}, 0, 1, 0}, Copies{{.shard = 2}, 2, 1, 0}, Copies{replicas, 3, 2, 0},
        Copies{replicas, 1, 3, 0}, Copies{replicas, 3, 0, -1, true}, Copies{{.shard = 2}, 3, 0, -1},
        // The head's tied weight lies on the second pipeline rank, too; the block's does not.
        Copies{pipeline, 0, 3, 0}, Copies{pipeline, 3, 3, 1}, Copies{pipeline, 3, 2, 0}})
    for (const ParameterId parameter : {kEmbedWeight, kBlockWeight}) {
      if (copies.mesh.pipeline > 1 && parameter != kEmbedWeight) continue;
      EngineOptions options = toy_options(2, copies.stage);
      options.mesh = copies.mesh;
      options.strategy.state_over_replicas = options.strategy.parameters_over_replicas = copies.over_replicas;
      std::atomic<int> asked{0};
      const auto differing = [&](ParameterId id, std::int64_t begin, std::span<float> values) {
        toy_fill()(id, begin, values);
        if (id != parameter || values.size() <= 16) return;  // no sample
        for (float& value : values) value += 1.0f;
        ++asked;
      };
      IdVector<std::string> messages;
      const auto run = [&](Communicator world) {
        Engine engine(world, toy_units(DType::bf16), options);
        engine.initialize(world.rank() == copies.differs ? Engine::Fill(differing) : toy_fill());
      };
      SCOPED_TRACE(fmt::format("stage {}, rank {}, parameter {}", copies.stage, copies.differs, parameter));
      if (copies.first < 0) {  // nobody has what is the rank's own
        run_local(copies.mesh.world(), kBlocking, run);
      } else {
        EXPECT_THROW(run_local(copies.mesh.world(), kBlocking, run, &messages), Error);
        for (const std::string& message : messages)
          EXPECT_THAT(message, ::testing::HasSubstr(fmt::format(
                                   "rank {} was given other initial values than rank {}, which holds",
                                   copies.differs, copies.first)));
      }
      EXPECT_GT(asked, 0);
    }
}

TEST(States, AFillThatGoesOnIsRefused) {
  for (const Fate& fate : run_failing(toy_options(2, 3), [&](Engine&engine, int) {
         float next = 0;
         engine.initialize([&](ParameterId, std::int64_t, std::span<float> values) {
           for (float& value : values) value = next += 0.25f;
         });
       }))
    EXPECT_NE(fate.message.find("fill gives other values when it is asked for the same elements again"),
              std::string::npos)
        << fate.message;
}

TEST(Step, UnequalLearningRatesAreNamed) {
  const IdVector<Fate> fates = run_failing(toy_options(2, 1), [](Engine& engine, int rank) {
    engine.begin(StepKind::train);
    toy_uses(engine, {});
    (void)engine.step({.learning_rate = rank == 0 ? 0.1 : 0.2});
  });
  for (const Fate& fate : fates) {
    EXPECT_EQ(fate.kind, Fate::Kind::communication) << fate.message;
    EXPECT_EQ(fate.culprit, 1);
    EXPECT_NE(fate.message.find("rank 1 has learning rate 0.2, rank 0 has 0.1"), std::string::npos)
        << fate.message;
  }
}

}  // namespace
}  // namespace tessera::testing
