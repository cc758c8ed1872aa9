// Trainer::generate and logits: the same text on all ranks of every mesh, and calls that are not alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "src/trainer/sample_token.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using Text = std::vector<std::int32_t>;

const Text kPrompt = {3, 1, 4, 1, 5, 9, 2, 6, 5};
constexpr int kCount = 12;  // beyond the context with the prompt
constexpr int kVocabulary = 29;

std::shared_ptr<const Model> small_model() {
  return std::make_shared<const Model>(make_gpt2(
      {.vocabulary = kVocabulary, .context = 16, .layers = 3, .heads = 2, .channels = 16}, DType::fp32));
}

TrainerOptions options_on(const Mesh& mesh, bool generation = true) {
  TrainerOptions options;
  options.engine.mesh = mesh;
  if (mesh.shard > 1) options.engine.strategy.placements = Placements::of_stage(3);
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
  options.batch = {.sequences = 1, .length = 16};
  options.generation = generation;
  return options;
}

// `body` on every rank of a mesh; the ranks' messages where it fails.
std::vector<std::string> run_on(const Mesh& mesh, const std::function<void(Trainer&, int rank)>& body,
                                bool generation = true) {
  std::vector<std::string> messages;
  const std::shared_ptr<const Model> model = small_model();
  try {
    run_local(
        mesh.world(), {.deadline = std::chrono::seconds(20)},
        [&](Communicator world) {
          Trainer trainer(world, model, options_on(mesh, generation));
          body(trainer, world.rank());
        },
        &messages);
  } catch (const Error&) {
    return messages;
  }
  return {};
}

std::vector<Text> texts_on(const Mesh& mesh, double temperature, std::uint64_t seed) {
  IdVector<Text> texts(mesh.world());
  EXPECT_THAT(run_on(mesh,
                     [&](Trainer& trainer, int rank) {
                       Text told;
                       Text& text = texts[rank];
                       text = trainer.generate(kPrompt, kCount, {.temperature = temperature, .seed = seed},
                                               [&](std::int32_t token) {
                                                 told.push_back(token);
                                                 return true;
                                               });
                       EXPECT_EQ(told, Text(text.end() - kCount, text.end()));
                     }),
              ::testing::IsEmpty());
  return texts;
}

TEST(Generate, TheSameTextOnAllRanksOfEveryMesh) {
  for (const double temperature : {0.0, 0.8}) {
    const Text expected = texts_on({}, temperature, 7)[0];
    ASSERT_EQ(expected.size(), kPrompt.size() + kCount);
    EXPECT_TRUE(std::ranges::equal(kPrompt, std::span(expected).first(kPrompt.size())));
    for (const std::int32_t token : expected) EXPECT_TRUE(token >= 0 && token < kVocabulary) << token;
    for (const Mesh& mesh :
         {Mesh{.shard = 2}, Mesh{.replicate = 2}, Mesh{.pipeline = 2}, Mesh{.pipeline = 3, .shard = 2}})
      for (const Text& text : texts_on(mesh, temperature, 7)) EXPECT_EQ(text, expected) << to_string(mesh);
  }
  EXPECT_NE(texts_on({}, 0.8, 7), texts_on({}, 0.8, 8));
}

// Without temperature each token is the likeliest behind those before it, of which the last 16 count.
TEST(Generate, TakesTheLikeliestWithoutTemperature) {
  const auto messages = run_on({}, [&](Trainer& trainer, int) {
    const Text text = trainer.generate(kPrompt, kCount, {.temperature = 0.0, .seed = 0});
    for (std::size_t at = kPrompt.size(); at < text.size(); ++at) {
      const std::size_t first = at > 16 ? at - 16 : 0;
      const std::vector<float> logits = trainer.logits(std::span(text).subspan(first, at - first));
      EXPECT_EQ(std::ranges::max_element(logits) - logits.begin(), text[at]) << at;
      EXPECT_EQ(logits, trainer.logits(std::span(text).first(at)));
    }
    EXPECT_EQ(trainer.generate(kPrompt, 0, {.temperature = 0.0, .seed = 0}), kPrompt);
  });
  EXPECT_THAT(messages, ::testing::IsEmpty());
}

// With one each is drawn at that temperature, from that seed, and by its own number.
TEST(Generate, DrawsEachTokenForItself) {
  const auto messages = run_on({}, [&](Trainer& trainer, int) {
    for (const double temperature : {0.7, 1.5}) {
      const Text text = trainer.generate(kPrompt, kCount, {.temperature = temperature, .seed = 9});
      for (std::size_t made = 0; made < kCount; ++made) {
        const std::size_t at = kPrompt.size() + made;
        const std::vector<float> logits = trainer.logits(std::span(text).first(at));
        EXPECT_EQ(text[at], sample_token(logits, {.temperature = temperature, .seed = 9}, made)) << made;
      }
    }
  });
  EXPECT_THAT(messages, ::testing::IsEmpty());
}

TEST(Generate, RefusesWhatRanksDoNotGiveAlike) {
  for (const Mesh& mesh : {Mesh{.shard = 2}, Mesh{.pipeline = 2}}) {
    const auto refused = [&](const std::string& expected,
                             const std::function<void(Trainer&, bool other)>& call) {
      const std::vector<std::string> messages =
          run_on(mesh, [&](Trainer& trainer, int rank) { call(trainer, rank == 1); });
      ASSERT_EQ(messages.size(), 2U) << expected;
      for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr(expected));
    };
    refused("generate: rank 1 gave other temperature than rank 0; all ranks must give the same",
            [](Trainer& trainer, bool other) {
              trainer.generate(kPrompt, 1, {.temperature = other ? 0.5 : 0.6, .seed = 0});
            });
    refused("generate: rank 1 gave other seed than rank 0", [](Trainer& trainer, bool other) {
      trainer.generate(kPrompt, 1, {.temperature = 0.5, .seed = other ? 1U : 0U});
    });
    refused("generate: rank 1 gave other count than rank 0", [](Trainer& trainer, bool other) {
      trainer.generate(kPrompt, other ? 1 : 2, {.temperature = 0.5, .seed = 0});
    });
    refused("generate: rank 1 gave other count than rank 0", [](Trainer& trainer, bool other) {
      trainer.generate(kPrompt, other ? 1 : -2, {.temperature = 0.5, .seed = 0});
    });
    refused("generate: rank 1 gave other prompt than rank 0", [](Trainer& trainer, bool other) {
      trainer.generate(other ? Text{3, 1} : Text{1, 3}, 0, {.temperature = 0.5, .seed = 0});
    });
    refused("generate: rank 1 gave other prompt than rank 0", [](Trainer& trainer, bool other) {
      trainer.generate(other ? Text{3, kVocabulary} : Text{3, 1}, 1, {.temperature = 0.5, .seed = 0});
    });
    refused("logits: rank 1 gave other tokens than rank 0", [](Trainer& trainer, bool other) {
      trainer.logits(other ? Text{3, 1} : Text{3, 1, 1});
    });
  }
}

TEST(Generate, RefusesWhatMeansNothing) {
  const auto refused = [&](const std::string& expected, const std::function<void(Trainer&)>& call,
                           bool generation = true) {
    const std::vector<std::string> messages = run_on(
        {}, [&](Trainer& trainer, int) { call(trainer); }, generation);
    ASSERT_EQ(messages.size(), 1U) << expected;
    EXPECT_THAT(messages[0], HasSubstr(expected));
  };
  refused("generate: count is -1; it must be 0 or more",
          [](Trainer& trainer) { trainer.generate(kPrompt, -1, {.temperature = 0.0, .seed = 0}); });
  for (const double temperature : {-1.0, std::numeric_limits<double>::infinity()})
    refused("generate: temperature is " + std::string(temperature < 0 ? "-1" : "inf"),
            [&](Trainer& trainer) { trainer.generate(kPrompt, 1, {.temperature = temperature, .seed = 0}); });
  refused("generate: there are no tokens",
          [](Trainer& trainer) { trainer.generate({}, 1, {.temperature = 0.0, .seed = 0}); });
  refused("logits: there are no tokens", [](Trainer& trainer) { trainer.logits({}); });
  for (const int count : {0, 1})
    refused(
        "generate: TrainerOptions::generation is false",
        [&](Trainer& trainer) { trainer.generate(kPrompt, count, {.temperature = 0.0, .seed = 0}); }, false);
  refused(
      "logits: TrainerOptions::generation is false", [](Trainer& trainer) { trainer.logits(kPrompt); },
      false);
}

// By all ranks, before any has begun: a wrong token is no end of the run.
TEST(Generate, ATokenThatTheModelLacksLeavesTheTrainerAsItWas) {
  for (const Mesh& mesh : {Mesh{}, Mesh{.shard = 2}, Mesh{.pipeline = 2}}) {
    const auto messages = run_on(mesh, [](Trainer& trainer, int) {
      const auto refused = [](const std::string& expected, const std::function<void()>& call) {
        try {
          call();
          ADD_FAILURE() << "accepted: " << expected;
        } catch (const UsageError& error) {
          EXPECT_EQ(error.what(), expected);
        }
      };
      const Text expected = trainer.generate(kPrompt, kCount, {.temperature = 0.8, .seed = 3});
      for (const std::int32_t token : {-1, kVocabulary, std::numeric_limits<std::int32_t>::max()}) {
        const std::string message =
            "token " + std::to_string(token) + " at place 1 is not within 0 to 28, the model's vocabulary";
        refused("generate: " + message, [&] {
          trainer.generate({3, token}, 2, {.temperature = 0.8, .seed = 3});
        });
        refused("generate: " + message, [&] {
          trainer.generate({3, token}, 0, {.temperature = 0.8, .seed = 3});
        });
        refused("logits: " + message, [&] { trainer.logits(Text{3, token}); });
        Text far(100, 3);  // of which the last 16 count
        far[1] = token;
        refused("generate: " + message, [&] { trainer.generate(far, 2, {.temperature = 0.8, .seed = 3}); });
        refused("logits: " + message, [&] { trainer.logits(far); });
      }
      EXPECT_EQ(trainer.generate(kPrompt, kCount, {.temperature = 0.8, .seed = 3}), expected);
    });
    EXPECT_THAT(messages, ::testing::IsEmpty()) << to_string(mesh);
  }
}

// Weights that have become none, as of a rate that was too high, say nothing.
TEST(Generate, LogitsThatAreNoNumbersGiveNoToken) {
  for (const double temperature : {0.0, 0.8}) {
    const auto messages = run_on({.shard = 2}, [&](Trainer& trainer, int) {
      const std::vector<float> none(16, std::numeric_limits<float>::quiet_NaN());
      trainer.engine().write(trainer.engine().layout().find("head.norm.gain"), StateKind::master, 0, none);
      EXPECT_THAT(trainer.logits(kPrompt), ::testing::Each(::testing::IsNan()));
      trainer.generate(kPrompt, 1, {.temperature = temperature, .seed = 0});
    });
    ASSERT_EQ(messages.size(), 2U);
    for (const std::string& message : messages)
      EXPECT_THAT(message, HasSubstr("generate: of 29 logits 29 are not numbers"));
  }
}

// What wants logits, and is refused, wants none of the steps that follow.
TEST(Generate, ARefusalLeavesTheNextStepAlone) {
  const auto fetch = [](int, void* batch) {
    auto* tokens = static_cast<std::int32_t*>(batch);  // inputs, then targets
    for (int i = 0; i < 32; ++i) tokens[i] = i % kVocabulary;
  };
  const auto messages = run_on({}, [&](Trainer& trainer, int) {
    const double loss = trainer.train_step(0.0, fetch).loss;
    EXPECT_GT(loss, 0);
    trainer.engine().begin_loading("a checkpoint");
    EXPECT_THROW(trainer.logits(kPrompt), UsageError);
    trainer.engine().end_loading();
    EXPECT_EQ(trainer.train_step(0.0, fetch).loss, loss);
  });
  EXPECT_THAT(messages, ::testing::IsEmpty());
}

}  // namespace
}  // namespace tessera::testing
