// Parameters that are cut over tensor ranks: whole in global coordinates, the same on any mesh and stage.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/engine/cut_toy.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

constexpr Mesh kMeshes[] = {{.tensor = 2},
                            {.tensor = 4},
                            {.shard = 2, .tensor = 2},
                            {.shard = 3, .tensor = 2},
                            {.pipeline = 2, .tensor = 2},
                            {.replicate = 2, .tensor = 2},
                            {.pipeline = 2, .shard = 2, .tensor = 2}};

// Runs `body` on engines of a mesh, poisoned; whatever a rank throws fails the test.
void on_engines(const Mesh& mesh, int stage, DType type, const std::function<void(Engine&)>& body,
                int microbatches = 1) {
  SCOPED_TRACE(fmt::format("{}, stage {}, {}", to_string(mesh), stage, name_of(type)));
  run_local(mesh.world(), kBlocking, [&](Communicator world) {
    EngineOptions options = cut_options(mesh, stage);
    options.programs = {{.microbatches = microbatches}};
    options.debug.poison = true;
    Engine engine(world, cut_units(type), options);
    body(engine);
  });
}

template <class Body>
void on_each(Body body) {
  for (const Mesh& mesh : kMeshes)
    for (int stage = 0; stage <= 3; ++stage)
      for (const DType type : {DType::fp32, DType::bf16}) body(mesh, stage, type);
}

// Whatever lies on this rank and belongs to no element of a parameter is 0.
void expect_zero_padding(Engine& engine) {
  const Layout& layout = engine.layout();
  const Mesh& mesh = engine.options().mesh;
  const Coordinates place = mesh.coordinates(engine.rank());
  const Spreads spreads = spreads_of(engine.options().strategy, mesh);
  int padding = 0;
  for (FlatId flat = 0; flat < layout.flats().count(); ++flat)
    for (const StateKind state :
         {StateKind::parameter, StateKind::master, StateKind::moment1, StateKind::moment2}) {
      const std::int64_t bytes = engine.persistent_bytes(flat, state);
      if (bytes == 0) continue;
      const Spread spread = state == StateKind::parameter ? spreads.parameters : spreads.states;
      const auto [begin, end] = range_of(layout.flat(flat), spread, place);
      std::vector<std::byte> held(static_cast<std::size_t>(bytes));
      engine.read_persistent(flat, state, 0, held);
      const std::int64_t element = bytes / (end - begin);
      std::vector<bool> is_used(static_cast<std::size_t>(end - begin));
      for (const Piece& piece : layout.global_pieces(flat, begin, end, place[Axis::tensor]))
        for (std::int64_t k = 0; k < piece.numel; ++k)
          is_used[static_cast<std::size_t>(piece.offset - begin + k)] = true;
      for (std::int64_t k = 0; k < end - begin; ++k) {
        if (is_used[static_cast<std::size_t>(k)]) continue;
        ++padding;
        for (std::int64_t byte = k * element; byte < (k + 1) * element; ++byte)
          ASSERT_EQ(held[static_cast<std::size_t>(byte)], std::byte{0})
              << name_of(state) << " of flat " << flat << ", element " << begin + k;
      }
    }
  EXPECT_GT(padding, 0);
}

std::vector<float> initial_values(DType type) {
  std::vector<float> all;
  on_engines({}, 0, type, [&](Engine& engine) {
    engine.initialize(toy_fill());
    all = read_whole(engine);
  });
  return all;
}

TEST(CutInitialize, GivesTheSameModelOnAnyMeshAndStage) {
  const std::vector<float> fp32 = initial_values(DType::fp32), bf16 = initial_values(DType::bf16);
  on_each([&](const Mesh& mesh, int stage, DType type) {
    on_engines(mesh, stage, type, [&](Engine& engine) {
      engine.initialize(toy_fill());
      EXPECT_EQ(read_whole(engine), type == DType::fp32 ? fp32 : bf16);
      expect_zero_padding(engine);
    });
  });
}

TEST(CutInitialize, AsksForWhatTheRankHoldsOnly) {
  on_engines({.shard = 2, .tensor = 2}, 3, DType::bf16, [&](Engine& engine) {
    const Layout& layout = engine.layout();
    const Coordinates place = engine.options().mesh.coordinates(engine.rank());
    std::set<std::pair<ParameterId, std::int64_t>> asked, held;
    engine.initialize(
        [&](ParameterId parameter, std::int64_t begin, std::span<float> values) {
          for (std::size_t k = 0; k < values.size(); ++k)
            EXPECT_TRUE(asked.insert({parameter, begin + static_cast<std::int64_t>(k)}).second);
        },
        0);
    for (ParameterId id = 0; id < layout.parameters(); ++id)
      for (std::int64_t k = 0; layout.place(id).home == id && k < numel_of(layout.parameter(id).shape); ++k)
        if (layout.shard_of({id, k}) == place[Axis::shard] &&
            (layout.shares(id).is_whole() || layout.tensor_rank_of({id, k}) == place[Axis::tensor]))
          held.insert({id, k});
    EXPECT_EQ(asked, held);
  });
}

// Each rank that is given other values than those that hold the same, where tensor ranks have copies and
// where they have shares.
TEST(CutInitialize, NamesARankOfOtherValues) {
  const auto with_one_off = [](const Mesh& mesh, ParameterId changed, int culprit) {
    std::vector<std::string> messages;
    EXPECT_THROW(run_local(
                     mesh.world(), kBlocking,
                     [&](Communicator world) {
                       Engine engine(world, cut_units(DType::fp32), cut_options(mesh, 0));
                       engine.initialize(
                           [&](ParameterId id, std::int64_t begin, std::span<float> values) {
                             toy_fill()(id, begin, values);
                             if (id == changed && world.rank() == culprit) values.back() += 1;
                           },
                           7);
                     },
                     &messages),
                 Error);
    return messages.at(0);
  };
  const auto named = [](int culprit, int than) {
    return ::testing::HasSubstr(
        fmt::format("rank {} was given other initial values than rank {}, which holds the same parameters",
                    culprit, than));
  };
  const Layout layout(cut_units(DType::fp32), 2, 1, 2);
  const ParameterId copied = layout.find("block.0.norm"), cut = layout.find("block.0.qkv"), tied = 0;
  const Mesh two{.shard = 2, .tensor = 2}, piped{.pipeline = 2, .tensor = 2};
  EXPECT_THAT(with_one_off(two, copied, 1), named(1, 0));
  EXPECT_THAT(with_one_off(two, copied, 3), named(3, 0));
  EXPECT_THAT(with_one_off(two, cut, 3), named(3, 1)) << "rank 0 has another share";
  EXPECT_THAT(with_one_off(two, cut, 2), named(2, 0));
  EXPECT_THAT(with_one_off(piped, tied, 3), named(3, 1)) << "of the table that the first and last units have";
}

TEST(CutRead, GivesAnyRangeOfAnyState) {
  for (const Mesh& mesh : {Mesh{.shard = 2, .tensor = 2}, Mesh{.pipeline = 2, .tensor = 4}})
    for (const int stage : {0, 3})
      on_engines(mesh, stage, DType::bf16, [&](Engine& engine) {
        engine.initialize(toy_fill());
        for (int step = 0; step < 2; ++step) cut_step(engine, {.step = step});
        for (const StateKind state : {StateKind::master, StateKind::parameter, StateKind::moment2})
          for (ParameterId id = 0; id < engine.layout().parameters(); ++id) {
            const ParameterSpec& spec = engine.layout().parameter(id);
            if (!spec.trainable && state != StateKind::parameter) continue;
            const std::int64_t numel = numel_of(spec.shape);
            std::vector<float> whole(static_cast<std::size_t>(numel));
            engine.read(id, state, 0, whole);
            for (std::int64_t begin = 0; begin <= numel; begin += 37)
              for (const std::int64_t count :
                   {std::int64_t{0}, std::int64_t{1}, std::int64_t{29}, numel - begin}) {
                if (begin + count > numel) continue;
                std::vector<float> part(static_cast<std::size_t>(count), -99.0f);
                engine.read(id, state, begin, part);
                EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin))
                    << spec.name << " from " << begin << ", " << count;
              }
          }
      });
}

TEST(CutRead, ChecksRangesOfTheWholeParameter) {
  on_engines({.tensor = 2}, 0, DType::fp32, [&](Engine& engine) {
    std::vector<float> one(1);
    engine.read(0, StateKind::master, 41 * 6 - 1, one);
    expect_words(refusal([&] { engine.read(0, StateKind::master, 41 * 6, one); }),
                 {"1 elements from 246 on", "embed.weight", "has 246"});
  });
}

// Written in parts that begin and end anywhere; what lies beside them, and padding, stays.
TEST(CutWrite, ChangesWhatIsGivenOnly) {
  on_each([&](const Mesh& mesh, int stage, DType type) {
    on_engines(mesh, stage, type, [&](Engine& engine) {
      engine.initialize(toy_fill());
      for (ParameterId id = 0; id < engine.layout().parameters(); ++id) {
        const ParameterSpec& spec = engine.layout().parameter(id);
        if (engine.layout().place(id).home != id) continue;
        const std::int64_t numel = numel_of(spec.shape);
        const std::vector<StateKind> states = spec.trainable
                                                  ? std::vector{StateKind::master, StateKind::moment1}
                                                  : std::vector{StateKind::parameter};
        for (const StateKind state : states) {
          std::vector<float> expected(static_cast<std::size_t>(numel)), found(expected.size());
          engine.read(id, state, 0, expected);
          for (std::int64_t begin = 1; begin < numel; begin += 23) {
            std::vector<float> part(static_cast<std::size_t>(std::min(numel - begin, std::int64_t{17})));
            for (std::size_t k = 0; k < part.size(); ++k)
              expected[static_cast<std::size_t>(begin) + k] = part[k] =
                  static_cast<float>((begin + static_cast<std::int64_t>(k)) % 61) / 8.0f;
            engine.write(id, state, begin, part);
          }
          engine.read(id, state, 0, found);
          EXPECT_EQ(found, expected) << spec.name << ", " << name_of(state);
          if (state != StateKind::master) continue;
          engine.read(id, StateKind::parameter, 0, found);
          EXPECT_EQ(found, expected) << spec.name << ": what is given is exact in bf16";
        }
      }
      expect_zero_padding(engine);
      EXPECT_TRUE(cut_step(engine, {}).applied) << "all ranks were given the same";
    });
  });
}

struct Trained {
  std::vector<float> states;
  std::vector<std::vector<float>> gradients;  // of the last step, by ParameterId
  std::vector<StepResult> steps;
};

Trained train(const Mesh& mesh, int stage, DType type, int microbatches) {
  Trained trained;
  on_engines(
      mesh, stage, type,
      [&](Engine& engine) {
        Trained own;
        engine.initialize(toy_fill());
        for (int step = 0; step < 3; ++step) {
          const ToyStep toy{.step = step, .microbatches = microbatches};
          cut_uses(engine, toy);
          own.gradients.clear();
          for (ParameterId id = 0; step == 2 && id < engine.layout().parameters(); ++id) {
            const ParameterSpec& spec = engine.layout().parameter(id);
            own.gradients.emplace_back(static_cast<std::size_t>(numel_of(spec.shape)), 0.0f);
            if (spec.trainable) engine.read_gradient(id, 0, own.gradients.back());
          }
          own.steps.push_back(end_cut_step(engine, toy));
          EXPECT_TRUE(own.steps.back().applied);
        }
        own.states = read_whole(engine);
        expect_zero_padding(engine);
        if (engine.rank() == 0) trained = own;
      },
      microbatches);
  return trained;
}

void expect_close(double found, double expected) { EXPECT_NEAR(found, expected, 1e-12 * expected); }

// The elements, gradients, loss and weight to the bit; norms but for the order in which squares are added.
TEST(CutStep, IsThatOfOneTensorRank) {
  std::map<std::tuple<int, DType, int>, Trained> known;
  on_each([&](const Mesh& mesh, int stage, DType type) {
    const int microbatches = 1 + stage % 2;
    const auto [at, is_new] = known.try_emplace({mesh.data_ranks(), type, microbatches});
    if (is_new) at->second = train({.shard = mesh.data_ranks()}, 0, type, microbatches);
    const Trained &expected = at->second, found = train(mesh, stage, type, microbatches);
    SCOPED_TRACE(fmt::format("{}, stage {}, {}", to_string(mesh), stage, name_of(type)));
    EXPECT_EQ(found.states, expected.states);
    EXPECT_EQ(found.gradients, expected.gradients);
    for (std::size_t step = 0; step < 3; ++step) {
      EXPECT_EQ(found.steps[step].loss, expected.steps[step].loss);
      EXPECT_EQ(found.steps[step].weight, expected.steps[step].weight);
      expect_close(found.steps[step].gradient_norm, expected.steps[step].gradient_norm);
      ASSERT_EQ(found.steps[step].parameter_norms.size(), expected.steps[step].parameter_norms.size());
      for (std::size_t id = 0; id < expected.steps[step].parameter_norms.size(); ++id)
        expect_close(found.steps[step].parameter_norms[id], expected.steps[step].parameter_norms[id]);
    }
  });
}

TEST(CutStep, NamesTheParameterThatIsNotFiniteWhicheverRankHasIt) {
  for (const std::int64_t index : {std::int64_t{0}, std::int64_t{15}})  // of one row: tensor rank 0's and 1's
    on_engines({.shard = 2, .tensor = 2}, 2, DType::fp32, [&](Engine& engine) {
      const ParameterId bad = engine.layout().find("block.0.out");
      ToyStep step;
      step.gradient = [&](const GradientAt& at) {
        return at.parameter == bad && at.index == index ? INFINITY : toy_gradient(at);
      };
      const StepResult result = cut_step(engine, step);
      EXPECT_EQ(result.reason, SkipReason::not_finite);
      EXPECT_EQ(result.first_nonfinite, "block.0.out");
    });
}

// Moments in bf16 are rounded by chance: alike where tensor ranks have copies.
TEST(CutStep, RoundsCopiesAlike) {
  for (const int stage : {0, 2})
    run_local(4, kBlocking, [&](Communicator world) {
      EngineOptions options = cut_options({.shard = 2, .tensor = 2}, stage);
      options.optimizer.moment_type = DType::bf16;
      Engine engine(world, cut_units(DType::bf16), options);
      engine.initialize(toy_fill());
      for (int step = 0; step < 3; ++step) cut_step(engine, {.step = step});
      int compared = 0;
      for (FlatId flat = 0; flat < engine.layout().flats().count(); ++flat) {
        if (engine.layout().flat(flat).over == TensorShare::cut) continue;
        for (const StateKind state : {StateKind::parameter, StateKind::moment1, StateKind::moment2}) {
          std::vector<std::byte> own(static_cast<std::size_t>(engine.persistent_bytes(flat, state)));
          if (own.empty()) continue;
          engine.read_persistent(flat, state, 0, own);
          std::vector<std::byte> all(4 * own.size());
          world.all_gather(own.data(), all.data(), static_cast<std::int64_t>(own.size()), {"test", "copies"});
          const auto of_rank = [&](int rank) {
            return std::span(all).subspan(static_cast<std::size_t>(rank) * own.size(), own.size());
          };
          EXPECT_TRUE(std::ranges::equal(of_rank(0), of_rank(1))) << name_of(state) << " of flat " << flat;
          EXPECT_TRUE(std::ranges::equal(of_rank(2), of_rank(3))) << name_of(state) << " of flat " << flat;
          ++compared;
        }
      }
      EXPECT_GT(compared, 4);
    });
}

}  // namespace
}  // namespace tessera::testing
