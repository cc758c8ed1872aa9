// Trainer::evaluate: every microbatch once, however many parts it takes, and an end between these.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::testing {
namespace {

constexpr int kVocabulary = 29;

TrainerOptions options_on(const Mesh& mesh, int evaluation_microbatches) {
  TrainerOptions options;
  options.engine.mesh = mesh;
  options.engine.waits.waiting = Waiting::block;
  if (mesh.shard > 1) options.engine.strategy.placements = Placements::of_stage(3);
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
  options.batch = {.sequences = 1, .length = 16};
  options.evaluation_microbatches = evaluation_microbatches;
  options.generation = true;  // its program lies among those of evaluation
  return options;
}

void run_on(const Mesh& mesh, int evaluation_microbatches,
            const std::function<void(Trainer&, int data_rank)>& body) {
  const auto model = std::make_shared<const Model>(make_gpt2(
      {.vocabulary = kVocabulary, .context = 16, .layers = 3, .heads = 2, .channels = 16}, DType::fp32));
  run_local(mesh.world(), {.deadline = std::chrono::seconds(20), .waiting = Waiting::block},
            [&](Communicator world) {
              Trainer trainer(world, model, options_on(mesh, evaluation_microbatches));
              body(trainer, mesh.data_rank(world.rank()));
            });
}

// Of some targets nothing is counted, so that microbatches weigh differently.
void fill(int data_rank, int microbatch, void* batch) {
  auto* inputs = static_cast<std::int32_t*>(batch);
  for (int k = 0; k < 32; ++k) inputs[k] = (k * 7 + microbatch * 5 + data_rank * 3) % kVocabulary;
  for (int k = 16; k < 16 + microbatch % 7; ++k) inputs[k] = -1;
}

TEST(Evaluate, IsTheMeanOverAllMicrobatchesWhateverItsParts) {
  constexpr int kAll = 40;  // of a part and a half, or of two and a half
  for (const Mesh& mesh : {Mesh{}, Mesh{.shard = 2}, Mesh{.pipeline = 2}}) {
    SCOPED_TRACE(to_string(mesh));
    double loss = 0.0, weight = 0.0;
    run_on(mesh, 1, [&](Trainer& trainer, int data_rank) {
      for (int microbatch = 0; microbatch < kAll; ++microbatch) {
        const StepResult one =
            trainer.evaluate([&](int, void* batch) { fill(data_rank, microbatch, batch); });
        if (trainer.engine().rank() > 0) continue;
        loss += one.loss * one.weight;
        weight += one.weight;
      }
    });
    run_on(mesh, kAll, [&](Trainer& trainer, int data_rank) {
      std::vector<int> asked;
      const StepResult result = trainer.evaluate([&](int microbatch, void* batch) {
        asked.push_back(microbatch);
        fill(data_rank, microbatch, batch);
      });
      std::vector<int> each(kAll);
      std::iota(each.begin(), each.end(), 0);
      EXPECT_EQ(asked, each);
      EXPECT_EQ(result.reason, SkipReason::none);
      EXPECT_EQ(result.weight, weight);
      EXPECT_NEAR(result.loss, loss / weight, 1e-12);
    });
  }
}

// How many parts there are depends on the pipeline; what they add up to does not.
TEST(Evaluate, HasTheSameBitsOnAnyPipeline) {
  for (const int all : {16, 33, 100})
    for (const int shard : {1, 2}) {
      std::vector<double> losses;
      for (const int pipeline : {1, 2, 3})
        run_on({.pipeline = pipeline, .shard = shard}, all, [&](Trainer& trainer, int data_rank) {
          const StepResult result =
              trainer.evaluate([&](int microbatch, void* batch) { fill(data_rank, microbatch, batch); });
          if (trainer.engine().rank() == 0) losses.push_back(result.loss);
        });
      EXPECT_EQ(losses, std::vector<double>(3, losses[0])) << all << " microbatches, " << shard << " shards";
    }
}

// Neither do the number of data ranks nor the parts: all of it is evaluated once.
TEST(Evaluate, HasTheSameBitsInAnyWorldAndInAnyParts) {
  constexpr int kAll = 48;
  std::vector<double> losses;
  for (const Mesh& mesh : {Mesh{}, Mesh{.shard = 2}, Mesh{.shard = 3}, Mesh{.shard = 4}, Mesh{.shard = 8},
                           Mesh{.replicate = 2, .shard = 3}, Mesh{.pipeline = 2, .shard = 2}}) {
    const int ranks = mesh.replicate * mesh.shard;
    run_on(mesh, kAll / ranks, [&](Trainer& trainer, int data_rank) {
      const StepResult result = trainer.evaluate(
          [&](int microbatch, void* batch) { fill(0, microbatch * ranks + data_rank, batch); });
      if (trainer.engine().rank() == 0) losses.push_back(result.loss);
    });
  }
  EXPECT_EQ(losses, std::vector<double>(losses.size(), losses[0]));
}

TEST(Evaluate, WithoutTargetsHasNoWeight) {
  run_on({}, 20, [](Trainer& trainer, int) {
    const StepResult result = trainer.evaluate([](int, void* batch) {
      std::fill_n(static_cast<std::int32_t*>(batch), 16, 1);
      std::fill_n(static_cast<std::int32_t*>(batch) + 16, 16, -1);
    });
    EXPECT_EQ(result.reason, SkipReason::no_weight);
    EXPECT_EQ(result.weight, 0.0);
    EXPECT_EQ(result.loss, 0.0);
  });
}

TEST(Evaluate, EndsBetweenPartsWhereItIsToldTo) {
  run_on({.shard = 2}, 40, [](Trainer& trainer, int data_rank) {
    int asked = 0, parts = 0;
    const Trainer::Fetch fetch = [&](int microbatch, void* batch) {
      ++asked;
      fill(data_rank, microbatch, batch);
    };
    const StepResult whole = trainer.evaluate(fetch, [&] { return ++parts > 0; });
    EXPECT_EQ(asked, 40);
    EXPECT_EQ(parts, 2) << "asked between three parts";
    EXPECT_EQ(whole.reason, SkipReason::none);
    asked = 0;
    const StepResult ended = trainer.evaluate(fetch, [] { return false; });
    EXPECT_EQ(asked, 16);
    EXPECT_EQ(ended.reason, SkipReason::abandoned);
    EXPECT_LT(ended.weight, whole.weight);
    EXPECT_GT(ended.weight, 0.0);
    EXPECT_EQ(trainer.evaluate(fetch).loss, whole.loss) << "and can be made again";
  });
}

}  // namespace
}  // namespace tessera::testing
