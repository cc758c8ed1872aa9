// Parameters and optimizer state by global coordinates: the same on any world and stage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tessera/layout.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

constexpr StateKind kStates[] = {StateKind::master, StateKind::parameter, StateKind::moment1,
                                 StateKind::moment2};

// Runs `body` on engines of a world; whatever a rank throws fails the test.
void on_engines(int world, int stage, DType type, const std::function<void(Engine&)>& body) {
  run_local(world, kBlocking, [&](Communicator communicator) {
    Engine engine(communicator, toy_units(type), toy_options(world, stage));
    body(engine);
  });
}

TEST(Initialize, GivesTheSameModelOnAnyWorldAndStage) {
  for (DType type : {DType::fp32, DType::bf16}) {
    std::vector<float> expected;
    for (int world : {1, 2, 3, 4})
      for (int stage = 0; stage <= 3; ++stage)
        on_engines(world, stage, type, [&](Engine& engine) {
          toy_step(engine, {.gradient = [](const GradientAt&) { return 1.0f; }});  // to be forgotten
          engine.initialize(toy_fill());
          const std::vector<float> all = read_everything(engine);
          if (expected.empty()) expected = all;
          EXPECT_EQ(all, expected) << "world " << world << " stage " << stage;
          EXPECT_EQ(engine.steps_applied(), 0);
          std::vector<float> frozen(10);
          engine.read(kFrozen, StateKind::parameter, 0, frozen);
          for (int k = 0; k < 10; ++k)
            EXPECT_EQ(frozen[static_cast<std::size_t>(k)], toy_initial(kFrozen, k));
        });
  }
}

TEST(Initialize, AsksForWhatTheRankHoldsOnly) {
  for (int stage : {2, 3})
    on_engines(4, stage, DType::bf16, [&](Engine& engine) {
      std::set<std::pair<ParameterId, std::int64_t>> asked;
      engine.initialize(
          [&](ParameterId parameter, std::int64_t begin, std::span<float> values) {
            for (std::size_t k = 0; k < values.size(); ++k)
              EXPECT_TRUE(asked.insert({parameter, begin + static_cast<std::int64_t>(k)}).second)
                  << "asked twice";
          },
          0);
      std::set<std::pair<ParameterId, std::int64_t>> held;
      const Layout& layout = engine.layout();
      for (ParameterId id = 0; id < layout.parameters(); ++id)
        for (std::int64_t k = 0; k < layout.place(id).numel && layout.place(id).home == id; ++k)
          if (stage == 2 || layout.shard_of({id, k}) == engine.rank()) held.insert({id, k});
      EXPECT_EQ(asked, held);
    });
}

TEST(Read, GivesAnyRangeOfAnyState) {
  for (int stage = 0; stage <= 3; ++stage)
    on_engines(3, stage, DType::bf16, [&](Engine& engine) {
      engine.initialize(toy_fill());
      for (int step = 0; step < 2; ++step) toy_step(engine, {.step = step});
      for (StateKind state : kStates)
        for (ParameterId id = 0; id < engine.layout().parameters(); ++id) {
          if (!engine.layout().parameter(id).trainable && state != StateKind::parameter) continue;
          const std::int64_t numel = engine.layout().place(id).numel;
          std::vector<float> whole(static_cast<std::size_t>(numel));
          engine.read(id, state, 0, whole);
          for (std::int64_t begin = 0; begin <= numel; begin += 37)
            for (std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{101}, numel - begin}) {
              if (begin + count > numel) continue;
              std::vector<float> part(static_cast<std::size_t>(count), -99.0f);
              engine.read(id, state, begin, part);
              EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin));
            }
        }
    });
}

// What is written comes back as the nearest that bf16 has; masters are as ever.
TEST(Write, RoundsMomentsThatAreKeptInBf16) {
  for (const int stage : {0, 1, 3})
    run_local(2, kBlocking, [&](Communicator world) {
      EngineOptions options = toy_options(2, stage);
      options.optimizer.moment_type = DType::bf16;
      Engine engine(world, toy_units(DType::bf16), options);
      engine.initialize(toy_fill());
      std::vector<float> values(400), found(400);
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = 1.0f + static_cast<float>(k) * 0.001f;
      for (const StateKind state : {StateKind::master, StateKind::moment1, StateKind::moment2}) {
        engine.write(kEmbedWeight, state, 77, values);
        engine.read(kEmbedWeight, state, 77, found);
        std::vector<float> expected = values;
        std::vector<std::uint16_t> rounded(values.size());
        if (state != StateKind::master) {
          const auto numel = static_cast<std::int64_t>(values.size());
          kernels::cast({}, numel, DType::fp32, values.data(), DType::bf16, rounded.data());
          kernels::cast({}, numel, DType::bf16, rounded.data(), DType::fp32, expected.data());
        }
        EXPECT_EQ(found, expected);
      }
      const FlatId flat = engine.layout().place(kEmbedWeight).flat;
      EXPECT_EQ(engine.persistent_bytes(flat, StateKind::master),
                2 * engine.persistent_bytes(flat, StateKind::moment1));
    });
}

// Moments that decay alike are rounded in another way in each unit, in each flat of one, and in each step.
TEST(Moments, AreRoundedAnewForEachFlatAndStep) {
  constexpr std::int64_t kNumel = 300;
  run_local(1, kBlocking, [&](Communicator world) {
    EngineOptions options;
    options.optimizer.moment_type = DType::bf16;
    Engine engine(world,
                  {{.name = "a",
                    .parameters = {{.name = "a.wide", .shape = {kNumel}},
                                   {.name = "a.half", .shape = {kNumel}, .dtype = DType::bf16}}},
                   {.name = "b", .parameters = {{.name = "b.wide", .shape = {kNumel}}}}},
                  options);
    engine.initialize(
        [](ParameterId, std::int64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); });
    std::vector<std::vector<float>> found;
    for (int step = 0; step < 2; ++step) {
      const std::vector<float> ones(kNumel, 1.0f);
      for (const ParameterId id : {0, 1, 2}) engine.write(id, StateKind::moment1, 0, ones);
      engine.begin(StepKind::train);
      for (const Pass pass : {Pass::forward, Pass::backward})
        for (const UnitId unit : pass == Pass::forward ? std::array{0, 1} : std::array{1, 0})
          engine.skip(unit, pass);
      ASSERT_TRUE(engine.step({.learning_rate = 0.1, .weight = 1.0}).applied);
      for (const ParameterId id : {0, 1, 2}) {
        engine.read(id, StateKind::moment1, 0, found.emplace_back(kNumel));
        for (const float value : found.back()) EXPECT_NEAR(value, 0.9, 0.004);
      }
    }
    for (std::size_t i = 0; i < found.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) EXPECT_NE(found[i], found[j]) << i << " " << j;
  });
}

TEST(Write, ChangesItsRangeAndTheParameterBehindTheMaster) {
  for (int stage = 0; stage <= 3; ++stage)
    on_engines(3, stage, DType::bf16, [&](Engine& engine) {
      engine.initialize(toy_fill());
      for (StateKind state : {StateKind::master, StateKind::moment1, StateKind::moment2}) {
        std::vector<float> expected(520), values(400);
        engine.read(kEmbedWeight, state, 0, expected);
        for (std::size_t k = 0; k < values.size(); ++k) values[k] = 1.0f + static_cast<float>(k) * 0.001f;
        std::copy(values.begin(), values.end(), expected.begin() + 77);
        engine.write(kHeadWeight, state, 77, values);  // tied: the same as the embedding's
        std::vector<float> found(520);
        engine.read(kEmbedWeight, state, 0, found);
        EXPECT_EQ(found, expected);
      }
      std::vector<float> masters(520), rounded(520);
      engine.read(kEmbedWeight, StateKind::master, 0, masters);
      engine.read(kEmbedWeight, StateKind::parameter, 0, rounded);
      for (std::size_t k = 0; k < masters.size(); ++k) {
        std::uint16_t bits = 0;
        float back = 0;
        kernels::cast({}, 1, DType::fp32, &masters[k], DType::bf16, &bits);
        kernels::cast({}, 1, DType::bf16, &bits, DType::fp32, &back);
        EXPECT_EQ(rounded[k], back);
      }
      const std::vector<float> seven(3, 7.0f);
      engine.write(kFrozen, StateKind::parameter, 2, seven);
      std::vector<float> frozen(10);
      engine.read(kFrozen, StateKind::parameter, 0, frozen);
      for (int k = 0; k < 10; ++k)
        EXPECT_EQ(frozen[static_cast<std::size_t>(k)], k >= 2 && k < 5 ? 7.0f : toy_initial(kFrozen, k));
    });
}

TEST(States, CarriedToAnotherEngineContinueBitwise) {
  for (int stage = 0; stage <= 3; ++stage)
    run_local(2, kBlocking, [&](Communicator world) {
      EngineOptions options = toy_options(2, stage);
      options.loss_scaling = LossScaleOptions{.initial = 64, .growth_interval = 3};
      Engine first(world, toy_units(DType::fp16), options);
      first.initialize(toy_fill());
      for (int step = 0; step < 2; ++step) toy_step(first, {.step = step});
      Engine second(world, toy_units(DType::fp16), options);
      second.initialize([](ParameterId, std::int64_t, std::span<float>) {});
      for (ParameterId id = 0; id < first.layout().parameters(); ++id)
        for (StateKind state : kStates) {
          const bool trainable = first.layout().parameter(id).trainable;
          if (trainable == (state == StateKind::parameter) || first.layout().place(id).home != id) continue;
          std::vector<float> values(static_cast<std::size_t>(first.layout().place(id).numel));
          first.read(id, state, 0, values);
          second.write(id, state, 0, values);
        }
      second.set_counters(first.counters());
      for (int step = 2; step < 5; ++step) {
        const StepResult a = toy_step(first, {.step = step}), b = toy_step(second, {.step = step});
        EXPECT_EQ(a.step, b.step);
        EXPECT_EQ(a.loss_scale, b.loss_scale);
        EXPECT_EQ(a.gradient_norm, b.gradient_norm);
      }
      EXPECT_EQ(second.loss_scale(), 128);
      EXPECT_EQ(read_everything(first), read_everything(second));
    });
}

TEST(States, TheScaleBeginsAnewBehindARunWithoutOne) {
  run_local(1, kBlocking, [&](Communicator world) {
    EngineOptions options = toy_options(1, 0);
    Engine plain(world, toy_units(DType::bf16), options);
    EXPECT_EQ(plain.counters().loss_scaler, std::nullopt);
    options.loss_scaling = LossScaleOptions{.initial = 64};
    Engine scaled(world, toy_units(DType::bf16), options);
    scaled.set_counters({.steps_applied = 3, .loss_scaler = LossScaleState{.scale = 8, .skipped = 2}});
    EXPECT_EQ(scaled.loss_scale(), 8);
    plain.set_counters(scaled.counters());
    EXPECT_EQ(plain.loss_scale(), 1);
    EXPECT_EQ(plain.counters().loss_scaler, std::nullopt);
    scaled.set_counters(plain.counters());
    EXPECT_EQ(scaled.loss_scale(), 64);
    EXPECT_EQ(scaled.counters().loss_scaler, LossScaleState{.scale = 64});
    EXPECT_EQ(scaled.counters().steps_applied, 3);
  });
}

TEST(States, CountersThatCannotBeLeaveTheEngineAsItWas) {
  run_local(1, kBlocking, [&](Communicator world) {
    EngineOptions options = toy_options(1, 0);
    options.loss_scaling = LossScaleOptions{.initial = 64, .max = 128};
    Engine engine(world, toy_units(DType::bf16), options);
    engine.initialize(toy_fill());
    engine.set_counters({.steps_applied = 3, .loss_scaler = LossScaleState{.scale = 8}});
    const Engine::Counters before = engine.counters();
    for (const Engine::Counters& wrong :
         {Engine::Counters{.steps_applied = -1, .loss_scaler = LossScaleState{.scale = 16}},
          Engine::Counters{.steps_applied = 4, .loss_scaler = LossScaleState{.scale = 256}}}) {
      EXPECT_THROW(engine.set_counters(wrong), UsageError);
      EXPECT_EQ(engine.counters().steps_applied, before.steps_applied);
      EXPECT_EQ(engine.counters().loss_scaler, before.loss_scaler);
    }
    engine.begin(StepKind::train);
    EXPECT_THROW(engine.set_counters(before), UsageError);
    engine.abandon();
  });
}

// Also where no text says from what.
TEST(States, WhatIsLoadedByHalvesIsNotUsed) {
  run_local(1, kBlocking, [&](Communicator world) {
    Engine engine(world, toy_units(DType::bf16), toy_options(1, 0));
    engine.begin_loading("");
    EXPECT_THROW(engine.begin(StepKind::train), UsageError);
    engine.end_loading();
    toy_step(engine, {});
  });
}

TEST(Persistent, IsTheRanksPartOfTheFlat) {
  for (DType type : {DType::fp32, DType::bf16})
    for (int stage = 0; stage <= 3; ++stage)
      on_engines(2, stage, type, [&](Engine& engine) {
        engine.initialize(toy_fill());
        toy_step(engine, {});
        const Layout& layout = engine.layout();
        for (FlatId flat = 0; flat < layout.flats().count(); ++flat) {
          const Flat& spec = layout.flat(flat);
          const bool own_master = spec.trainable && spec.dtype != DType::fp32;
          EXPECT_EQ(engine.persistent(flat, StateKind::master).empty(), !own_master);
          EXPECT_EQ(engine.persistent(flat, StateKind::moment1).empty(), !spec.trainable);
          for (StateKind state : {StateKind::master, StateKind::moment1, StateKind::moment2}) {
            const std::span<std::byte> bytes = engine.persistent(flat, state);
            if (!spec.trainable) continue;
            const std::int64_t numel = stage == 0 ? spec.padded_numel : spec.shard_numel;
            const std::int64_t begin = stage == 0 ? 0 : engine.rank() * spec.shard_numel;
            EXPECT_TRUE(bytes.empty() || bytes.size() == static_cast<std::size_t>(4 * numel));
            for (ParameterId id : spec.parameters) {
              std::vector<float> values(static_cast<std::size_t>(layout.place(id).numel));
              engine.read(id, state, 0, values);
              if (bytes.empty()) continue;
              for (std::int64_t k = 0; k < layout.place(id).numel; ++k) {
                const std::int64_t at = layout.place(id).offset + k - begin;
                if (at < 0 || at >= numel) continue;
                EXPECT_EQ(0, std::memcmp(bytes.data() + 4 * at, &values[static_cast<std::size_t>(k)], 4));
              }
            }
          }
        }
      });
}

TEST(States, WrongArgumentsAreNamed) {
  struct Wrong {
    std::function<void(Engine&, std::vector<float>&)> call;
    std::vector<std::string> words;
  };
  const std::vector<Wrong> wrongs = {
      {[](Engine& e, std::vector<float>& v) { e.read(44, StateKind::master, 0, v); },
       {"read", "44", "0 to 8"}},
      {[](Engine& e, std::vector<float>& v) { e.read(-1, StateKind::master, 0, v); },
       {"read", "-1", "0 to 8"}},
      {[](Engine& e, std::vector<float>& v) { e.read(kEmbedBias, StateKind::master, 10, v); },
       {"read", "4 elements from 10 on", "'embed.bias'", "13"}},
      {[](Engine& e, std::vector<float>& v) { e.read(kEmbedBias, StateKind::master, -1, v); },
       {"read", "4 elements from -1 on", "'embed.bias'"}},
      {[](Engine& e, std::vector<float>& v) { e.read(kFrozen, StateKind::master, 0, v); },
       {"read", "'block.0.frozen'", "master"}},
      {[](Engine& e, std::vector<float>& v) { e.read(kFrozen, StateKind::moment1, 0, v); },
       {"read", "'block.0.frozen'", "moment1"}},
      {[](Engine& e, std::vector<float>& v) { e.read(kEmbedWeight, StateKind::moment2, 0, v); },
       {"read", "'embed.weight'", "moment2"}},
      {[](Engine& e, std::vector<float>& v) { e.write(kEmbedWeight, StateKind::moment2, 0, v); },
       {"write", "'embed.weight'", "moment2"}},
      {[](Engine& e, std::vector<float>& v) { e.write(kEmbedWeight, StateKind::parameter, 0, v); },
       {"write", "'embed.weight'", "master"}},
      {[](Engine& e, std::vector<float>& v) { e.write(kEmbedBias, StateKind::master, 10, v); },
       {"write", "4 elements from 10 on", "'embed.bias'"}},
      {[](Engine& e, std::vector<float>&) { e.set_counters({.steps_applied = -2}); }, {"set_counters", "-2"}},
  };
  for (const Wrong& wrong : wrongs) {
    const auto run = [&] {
      run_local(1, kBlocking, [&](Communicator world) {
        EngineOptions options = toy_options(1, 0);
        options.optimizer.options = SgdOptions{.momentum = 0.9};
        Engine engine(world, toy_units(DType::bf16), options);
        engine.initialize(toy_fill());
        std::vector<float> values(4);
        wrong.call(engine, values);
      });
    };
    try {
      run();
      ADD_FAILURE() << "no error: " << wrong.words[0] << " " << wrong.words[1];
    } catch (const UsageError& error) {
      for (const std::string& word : wrong.words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << word << " is not in: " << error.what();
    }
  }
}

}  // namespace
}  // namespace tessera::testing
