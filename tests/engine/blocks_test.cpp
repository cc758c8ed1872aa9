// With blocks, a step's gradient is a balanced tree over sums of consecutive microbatches: by hand, and the
// same bits on any number of replicas and shards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "tests/engine/matrix.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

// ------------------------------------------------------------------ by hand

// Of all sizes, so that another order would round otherwise; the same in every type.
float gradient_of(ParameterId parameter, std::int64_t index, std::int64_t number) {
  const auto place = static_cast<std::uint64_t>(number * 100'000 + index);
  const double size =
      std::ldexp(1.0, static_cast<int>(40.0 * uniform(3, static_cast<std::uint64_t>(parameter), place)));
  return std::round(
             static_cast<float>(uniform(4, static_cast<std::uint64_t>(parameter), place) * 255.0 - 127.0)) *
         static_cast<float>(size);
}

// The tree over blocks [first, first + count) of `each` microbatches.
float tree(ParameterId parameter, std::int64_t index, int first, int count, int each) {
  if (count > 1)
    return tree(parameter, index, first, count / 2, each) +
           tree(parameter, index, first + count / 2, count / 2, each);
  float sum = gradient_of(parameter, index, std::int64_t{first} * each);
  for (int k = 1; k < each; ++k) sum += gradient_of(parameter, index, std::int64_t{first} * each + k);
  return sum;
}

struct Cut {
  Mesh mesh;
  int microbatches, blocks;
};

// The reduced gradients of a step, whole, of parameters of one use.
std::vector<float> reduced_gradients(const Cut& of, int stage) {
  EngineOptions options = toy_options(1, stage);
  options.mesh = of.mesh;
  options.strategy.blocks = of.blocks;
  options.debug.poison = true;
  const Rounds rounds = Rounds::of(of.microbatches, of.mesh, of.blocks);
  options.programs = {{.microbatches = rounds.count, .last_round_ranks = rounds.last_ranks}};
  std::vector<float> gradients;
  run_local(of.mesh.world(), kBlocking, [&](Communicator world) {
    Engine engine(world, toy_units(DType::fp32), options);
    engine.initialize(toy_fill());
    engine.begin(StepKind::train, rounds.count);
    toy_uses(engine, {.microbatches = engine.own_microbatches(), .gradient = [&](const GradientAt& at) {
                        return gradient_of(at.parameter, at.index,
                                           rounds.number(of.mesh, at.rank, at.microbatch));
                      }});
    std::vector<float> all;
    for (const ParameterId id : {kEmbedBias, kBlockWeight}) {
      std::vector<float> values(static_cast<std::size_t>(engine.layout().place(id).numel));
      engine.read_gradient(id, 0, values);
      all.insert(all.end(), values.begin(), values.end());
    }
    EXPECT_TRUE(engine.step({.learning_rate = 0.01}).applied);
    if (world.rank() == 0) gradients = std::move(all);
  });
  return gradients;
}

TEST(Blocks, AreAddedAsATree) {
  for (const Cut& of : {Cut{{}, 8, 4}, Cut{{}, 16, 16}, Cut{{.shard = 2}, 12, 4}, Cut{{.shard = 3}, 8, 8},
                        Cut{{.shard = 4}, 4, 4}, Cut{{.replicate = 2}, 6, 2}, Cut{{.replicate = 4}, 12, 4},
                        Cut{{.replicate = 4, .shard = 2}, 24, 8}, Cut{{.replicate = 2, .shard = 3}, 8, 8},
                        Cut{{.replicate = 8}, 8, 8}}) {
    std::vector<float> expected, one_chain;
    const Layout layout(toy_units(DType::fp32), 1);
    for (const ParameterId id : {kEmbedBias, kBlockWeight})
      for (std::int64_t k = 0; k < layout.place(id).numel; ++k) {
        expected.push_back(tree(id, k, 0, of.blocks, of.microbatches / of.blocks));
        one_chain.push_back(tree(id, k, 0, 1, of.microbatches));
      }
    for (int stage = 0; stage <= 3; ++stage)
      EXPECT_TRUE(same_bits("gradients", reduced_gradients(of, stage), expected))
          << to_string(of.mesh) << ", " << of.microbatches << " in " << of.blocks << ", stage " << stage;
    EXPECT_EQ(expected == one_chain, of.blocks == 1);
  }
}

// ------------------------------------------------------------------ worlds

class BlocksOfModels : public ::testing::TestWithParam<DType> {};

// Also where microbatches are no multiple of the ranks, and fewer; a round may end one block and begin
// others.
TEST_P(BlocksOfModels, TrainToTheSameBitsOnAllReplicas) {
  int index = 0;
  for (const int microbatches : {4, 12}) {
    const RunConfig of{.family = Family::llama,
                       .reduce = ReduceWhen::automatic,
                       .blocks = 4,
                       .dtype = GetParam(),
                       .microbatches = microbatches,
                       .steps = 3,
                       .max_norm = 0.05,
                       .poison = true};
    const RunResult alone = run_training(dealt(of, 1, 1));
    for (const double norm : alone.norms) EXPECT_GT(norm, 1.5 * of.max_norm) << "clipping does not bite";
    RunConfig chain = dealt(of, 1, 1);
    chain.blocks = 1;
    chain.reduce = ReduceWhen::each;
    if (GetParam() == DType::fp32) {  // sums of a few in bf16 seldom round
      EXPECT_FALSE(same_bits(run_training(chain), alone)) << "a tree is no chain";
    }
    for (const int replicas : {1, 2, 4})
      for (const int shards : {1, 2, 3, 4, 6, 8})
        for (const int pipeline : {1, 2}) {
          if (replicas * shards * pipeline > 8) continue;
          ++index;
          if (!is_sampled(index)) continue;
          RunConfig run = dealt(of, replicas, shards);
          run.pipeline = pipeline;
          run.stage = index % 4;
          run.state_over_replicas = replicas > 1 && run.stage > 0 && index % 3 == 0;
          if (index % 5 == 0) run.offload.states = index % 2 == 0 ? Space::host : Space::disk;
          EXPECT_TRUE(same_bits(run_training(run), alone)) << to_string(run);
        }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BlocksOfModels, ::testing::Values(DType::fp32, DType::bf16),
                         [](const auto& made) { return std::string(name_of(made.param)); });

// ------------------------------------------------------------------ what is refused

TEST(Blocks, RefuseWhatHasNoTree) {
  const auto refused = [](const Strategy& strategy, const Mesh& mesh, int microbatches,
                          const std::string& why) {
    EngineOptions options = toy_options(1, 0);
    options.mesh = mesh;
    options.strategy = strategy;
    options.programs = {{.microbatches = microbatches}};
    try {
      run_local(mesh.world(), kBlocking,
                [&](Communicator world) { Engine(world, toy_units(DType::fp32), options); });
      ADD_FAILURE() << "accepted: " << why;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused({.placements = {}, .blocks = 3}, {}, 3, "strategy.blocks is 3; it must be a power of two");
  refused({.placements = {}, .blocks = 0}, {}, 2, "strategy.blocks is 0; it must be a power of two");
  refused({.placements = {}, .blocks = 4}, {}, 2, "strategy.blocks is 4 and a step has 2 microbatches");
  refused({.placements = {}, .blocks = 2}, {.replicate = 4}, 2, "strategy.blocks is 2 and mesh.replicate 4");
  refused({.placements = {}, .reduce = ReduceWhen::last, .blocks = 2}, {}, 2,
          "strategy.blocks is 2 and strategy.reduce is last");
}

}  // namespace
}  // namespace tessera::testing
