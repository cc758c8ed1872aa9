// Who reads parameters and states beside steps finds them as they were, until it is told of a change.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "tests/engine/failing.h"
#include "tests/engine/looking_reader.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

EngineOptions options_of(int world, int stage, UpdateWhen update = UpdateWhen::decided,
                         const Offload& offload = {}) {
  EngineOptions options = toy_options(world, stage);
  options.programs = {{.kind = StepKind::train}, {.kind = StepKind::evaluate}};
  options.strategy.update = update;
  options.strategy.offload = offload;
  options.debug.poison = true;
  options.disk_directory = std::filesystem::temp_directory_path();
  return options;
}

void on_engines(const EngineOptions& options, const std::function<void(Engine&)>& body) {
  run_local(options.mesh.world(), kBlocking, [&](Communicator world) {
    Engine engine(world, toy_units(DType::bf16), options);
    engine.initialize(toy_fill());
    body(engine);
  });
}

double all_weights(int world) {
  double sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += toy_weight(rank);
  return sum;
}

// A step of any update time, up to step().
void begin_step(Engine& engine, int step) {
  engine.begin(StepKind::train, 1, {.learning_rate = 0.01, .weight = all_weights(engine.world())});
  toy_uses(engine, {.step = step});
}
void end_step(Engine& engine) {
  EXPECT_TRUE(engine.step({.learning_rate = 0.01, .weight = toy_weight(engine.rank())}).applied);
}

TEST(Readers, FindNothingChangedUntilTheyAreTold) {
  struct Case {
    UpdateWhen update;
    Offload offload;
  };
  const Case cases[] = {{UpdateWhen::decided, {}},
                        {UpdateWhen::reduced, {}},
                        {UpdateWhen::decided, {.states = Space::host}},
                        {UpdateWhen::reduced, {.states = Space::host, .states_on_device = 0.5}},
                        {UpdateWhen::next, {.states = Space::host}},
                        {UpdateWhen::next, {.states = Space::disk, .states_on_device = 0.5}}};
  for (const int world : {1, 2})
    for (int stage = 0; stage <= 3; ++stage)
      for (const auto& [update, offload] : cases)
        on_engines(options_of(world, stage, update, offload), [&](Engine& engine) {
          begin_step(engine, 0);
          end_step(engine);
          engine.finish_updates();
          for (int step = 1; step < 3; ++step) {
            const std::shared_ptr<LookingReader> reader = add_reader(engine);
            begin_step(engine, step);
            EXPECT_EQ(reader->told, update == UpdateWhen::reduced ? 1 : 0);
            end_step(engine);
            EXPECT_EQ(reader->told, 1);
            engine.finish_updates();
            EXPECT_EQ(reader->told, 1);
            EXPECT_TRUE(reader->same)
                << "world " << world << " stage " << stage << " update " << static_cast<int>(update);
            EXPECT_FALSE(reader->unchanged()) << "the step changes nothing";
          }
        });
}

TEST(Readers, AreToldByWhateverChangesOnly) {
  on_engines(options_of(2, 2), [&](Engine& engine) {
    begin_step(engine, 0);
    end_step(engine);
    std::shared_ptr<LookingReader> reader = add_reader(engine);
    engine.begin(StepKind::evaluate);
    toy_uses(engine, {}, StepKind::evaluate);
    (void)engine.step({.weight = 1});
    read_everything(engine);
    engine.finish_updates();
    EXPECT_EQ(reader->told, 0);
    // Whether the ranks abandon it is not known before they meet.
    engine.begin(StepKind::train);
    engine.abandon();
    EXPECT_EQ(reader->told, 1);
    EXPECT_TRUE(reader->unchanged());

    const auto told_by = [&](const std::function<void()>& change) {
      reader = add_reader(engine);
      change();
      EXPECT_EQ(reader->told, 1);
      EXPECT_TRUE(reader->same);
      change();
      EXPECT_EQ(reader->told, 1);
      return reader->unchanged();
    };
    const std::vector<float> values(1, 3.0f);
    EXPECT_FALSE(told_by([&] { engine.write(kBlockScale, StateKind::master, 0, values); }));
    EXPECT_FALSE(told_by([&] { engine.initialize(toy_fill()); }));
    EXPECT_TRUE(told_by([&] { engine.wait_for_readers(); }));
    EXPECT_FALSE(told_by([&] {
      engine.wait_for_readers();
      const std::vector<std::byte> ones(
          static_cast<std::size_t>(engine.persistent_bytes(0, StateKind::moment1)), std::byte{1});
      engine.write_persistent(0, StateKind::moment1, 0, ones);
    }));
  });
}

TEST(Readers, SeveralAndThoseThatAreGone) {
  on_engines(options_of(2, 3), [&](Engine& engine) {
    const std::shared_ptr<LookingReader> one = add_reader(engine), other = add_reader(engine);
    std::weak_ptr<LookingReader> gone;
    {
      const std::shared_ptr<LookingReader> dropped = add_reader(engine);
      gone = dropped;
    }
    EXPECT_TRUE(gone.expired()) << "an engine keeps no reader";
    begin_step(engine, 0);
    end_step(engine);
    EXPECT_EQ(one->told + other->told, 2);
    EXPECT_TRUE(one->same && other->same);
  });
}

TEST(Readers, AreToldThatTheEngineGoes) {
  run_local(2, kBlocking, [&](Communicator world) {
    auto engine = std::make_unique<Engine>(world, toy_units(DType::bf16), options_of(2, 3));
    engine->initialize(toy_fill());
    const std::shared_ptr<LookingReader> told = add_reader(*engine);
    begin_step(*engine, 0);
    end_step(*engine);
    const std::shared_ptr<LookingReader> waiting = add_reader(*engine);
    engine.reset();
    EXPECT_EQ(told->gone, 0);
    EXPECT_EQ(waiting->gone, 1);
    EXPECT_EQ(waiting->told, 0);
    EXPECT_TRUE(waiting->same);
  });
}

// The engine has then failed; it is still to tell the others that it goes.
TEST(Readers, BehindOneThatThrowsAreToldThatTheEngineGoes) {
  struct Throws : StatesReader {
    void before_change() override { throw EnvironmentError("no more"); }
    void before_engine_goes() noexcept override { ++gone; }
    int gone = 0;
  };
  const auto throws = std::make_shared<Throws>();
  std::shared_ptr<LookingReader> behind;
  EXPECT_EQ(run_failing(options_of(1, 2),
                        [&](Engine& engine, int) {
                          engine.add_reader(throws);
                          behind = add_reader(engine);
                          toy_step(engine, {});
                        })[0]
                .message,
            "no more");
  EXPECT_EQ(throws->gone, 1);
  EXPECT_EQ(behind->gone, 1);
  EXPECT_EQ(behind->told, 0);
}

TEST(Readers, MistakesAreNamed) {
  const auto refusal = [](const EngineOptions& options, const std::function<void(Engine&)>& body) {
    return run_failing(options, [&](Engine& engine, int) { body(engine); })[0].message;
  };
  EXPECT_EQ(refusal(options_of(1, 2), [](Engine& engine) { engine.add_reader(nullptr); }),
            "add_reader: reader is null");
  EXPECT_NE(refusal(options_of(1, 2),
                    [](Engine& engine) {
                      const auto reader = std::make_shared<LookingReader>(engine);
                      engine.begin(StepKind::train);
                      engine.add_reader(reader);
                    })
                .find("add_reader: a step is running"),
            std::string::npos);
  EXPECT_NE(refusal(options_of(1, 2, UpdateWhen::next, {.states = Space::host}),
                    [](Engine& engine) {
                      const auto reader = std::make_shared<LookingReader>(engine);
                      toy_step(engine, {});
                      engine.add_reader(reader);
                    })
                .find("finish_updates()"),
            std::string::npos);
  EXPECT_NE(refusal(options_of(1, 2),
                    [](Engine& engine) {
                      const std::shared_ptr<LookingReader> reader = add_reader(engine);
                      const std::vector<std::byte> bytes(4);
                      engine.write_persistent(0, StateKind::moment1, 0, bytes);
                    })
                .find("wait_for_readers()"),
            std::string::npos);
  // What a reader throws is the engine's failure.
  struct Throws : StatesReader {
    void before_change() override { throw EnvironmentError("no more"); }
    void before_engine_goes() noexcept override {}
  };
  EXPECT_EQ(refusal(options_of(1, 2),
                    [](Engine& engine) {
                      const auto reader = std::make_shared<Throws>();
                      engine.add_reader(reader);
                      toy_step(engine, {});
                    }),
            "no more");
}

}  // namespace
}  // namespace tessera::testing
