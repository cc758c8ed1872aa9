// Trainer::losses: the loss of every token, whatever the mesh and however many sequences there are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "tessera/data.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 29, kLength = 16;
const std::vector<BatchShape> kShapes = {{.sequences = 2, .length = kLength}, {.sequences = 4, .length = 5}};

TrainerOptions options_on(const Mesh& mesh) {
  TrainerOptions options;
  options.engine.mesh = mesh;
  options.engine.waits.waiting = Waiting::block;
  if (mesh.shard > 1) options.engine.strategy.placements = Placements::of_stage(3);
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
  options.batch = kShapes[0];
  options.scored = kShapes;
  options.trains = false;
  options.generation = true;
  return options;
}

void run_on(const Mesh& mesh, const std::function<void(Trainer&)>& body) {
  const auto model = std::make_shared<const Model>(make_gpt2(
      {.vocabulary = kVocabulary, .context = kLength, .layers = 3, .heads = 2, .channels = 16}, DType::fp32));
  run_local(mesh.world(), {.deadline = std::chrono::seconds(20), .waiting = Waiting::block},
            [&](const Communicator& world) {
              Trainer trainer(world, model, options_on(mesh));
              body(trainer);
            });
}

// A text for each sequence; of some tokens nothing counts.
struct Texts {
  std::vector<std::int32_t> inputs, targets;
  std::vector<float> losses;
  Texts(std::int64_t sequences, std::int64_t length) {
    for (std::int64_t s = 0; s < sequences; ++s)
      for (std::int64_t k = 0; k < length; ++k) {
        const auto token = [&](std::int64_t at) {
          return static_cast<std::int32_t>((at * 7 + s * 5) % kVocabulary);
        };
        inputs.push_back(token(k));
        targets.push_back(k < s % 4 ? kNotCounted : token(k + 1));
      }
    losses.assign(inputs.size(), -1.0F);
  }
  void score(Trainer& trainer, int shape) { trainer.losses(shape, inputs, targets, losses); }
};

TEST(Losses, AreThoseOfTheLogits) {
  run_on({}, [](Trainer& trainer) {
    Texts texts(2, kLength);
    texts.score(trainer, 0);
    for (std::size_t at = 0; at < texts.inputs.size(); ++at) {
      if (texts.targets[at] == kNotCounted) {
        EXPECT_EQ(texts.losses[at], 0.0F);
        continue;
      }
      const std::size_t first = at / kLength * kLength;
      const std::vector<float> logits =
          trainer.logits(std::span(texts.inputs).subspan(first, at - first + 1));
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      EXPECT_NEAR(texts.losses[at],
                  std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(texts.targets[at])]),
                  1e-5);
    }
  });
}

// They add up to what an evaluation of the same sequences gives.
TEST(Losses, AddUpToAnEvaluation) {
  run_on({}, [](Trainer& trainer) {
    Texts texts(2, kLength);
    texts.score(trainer, 0);
    const StepResult result = trainer.evaluate([&](int, void* batch) {
      std::memcpy(batch, texts.inputs.data(), 4 * texts.inputs.size());
      std::memcpy(static_cast<std::int32_t*>(batch) + texts.inputs.size(), texts.targets.data(),
                  4 * texts.targets.size());
    });
    EXPECT_NEAR(std::accumulate(texts.losses.begin(), texts.losses.end(), 0.0), result.loss * result.weight,
                1e-4);
  });
}

TEST(Losses, HaveTheSameBitsInEveryWorld) {
  for (const int shape : {0, 1}) {
    std::vector<float> alone;
    for (const Mesh& mesh : {Mesh{}, Mesh{.shard = 2}, Mesh{.shard = 3}, Mesh{.replicate = 2, .shard = 2},
                             Mesh{.pipeline = 3}, Mesh{.pipeline = 2, .shard = 2}}) {
      run_on(mesh, [&](Trainer& trainer) {
        const BatchShape& of = kShapes[static_cast<std::size_t>(shape)];
        EXPECT_EQ(trainer.scored_at_once(shape), mesh.world() * of.sequences);
        Texts texts(24, of.length);
        const auto at_once = static_cast<std::size_t>(trainer.scored_at_once(shape) * of.length);
        for (std::size_t at = 0; at < texts.inputs.size(); at += at_once) {  // the last is not full
          const std::size_t some = std::min(at_once, texts.inputs.size() - at);
          trainer.losses(shape, std::span(texts.inputs).subspan(at, some),
                         std::span(texts.targets).subspan(at, some),
                         std::span(texts.losses).subspan(at, some));
        }
        if (alone.empty()) alone = texts.losses;  // of one rank
        EXPECT_EQ(texts.losses, alone) << to_string(mesh);
      });
    }
  }
}

TEST(Losses, OfTensorRanksAreAllOfThem) {
  Texts alone(2, kLength);
  run_on({}, [&](Trainer& trainer) { alone.score(trainer, 0); });
  run_on({.shard = 2, .tensor = 2}, [&](Trainer& trainer) {
    Texts texts(2, kLength);
    texts.score(trainer, 0);
    for (std::size_t at = 0; at < texts.losses.size(); ++at)
      EXPECT_NEAR(texts.losses[at], alone.losses[at], 1e-5) << at;
  });
}

TEST(Losses, OfWhatDoesNotFitAreRefused) {
  run_on({.shard = 2}, [](Trainer& trainer) {
    const auto refused = [&](int shape, Texts texts, const char* why) {
      try {
        texts.score(trainer, shape);
        ADD_FAILURE() << "taken";
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), HasSubstr(why));
      }
    };
    refused(2, Texts(1, kLength), "losses: shape 2 does not exist; TrainerOptions::scored has 2");
    refused(0, Texts(5, kLength), "of 1 to 4 sequences of 16 tokens");
    refused(0, Texts(1, kLength - 1), "there are 15 inputs, 15 targets and 15 losses");
    Texts beyond(1, kLength);
    beyond.targets[3] = kVocabulary;
    refused(0, beyond, "target 29 is neither -1 nor within 0 to 28");
    Texts good(1, kLength);
    good.score(trainer, 0);
    EXPECT_GT(good.losses[5], 0.0F) << "and the trainer goes on";
  });
}

}  // namespace
}  // namespace tessera::testing
