// Trainer::extend and generate with a cache: the logits and texts of the same model without one, on every
// mesh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "tessera/fine_tuning.h"
#include "tessera/memory_plan.h"
#include "tessera/model.h"
#include "tessera/trainer.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using Text = std::vector<std::int32_t>;

constexpr int kVocabulary = 29, kContext = 24;
const Text kText = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4};

Model gpt2(DType type = DType::fp32) {
  return make_gpt2({.vocabulary = kVocabulary, .context = kContext, .layers = 3, .heads = 4, .channels = 32},
                   type);
}
Model llama(std::int64_t kv_heads, DType type = DType::fp32, std::int64_t padded = 1) {
  return make_llama({.vocabulary = kVocabulary,
                     .pad_vocabulary_to = padded,
                     .context = kContext,
                     .layers = 3,
                     .heads = 4,
                     .kv_heads = kv_heads,
                     .channels = 32,
                     .hidden = 48},
                    type);
}

struct Case {
  std::string name;
  std::function<Model()> model;
  Mesh mesh = {};
  int stage = 0;
  std::int64_t prompt_rows = 256;
  int chunks = 1;
};

TrainerOptions options_of(const Case& one, std::int64_t cached) {
  TrainerOptions options;
  options.engine.mesh = one.mesh;
  options.engine.strategy.placements = Placements::of_stage(one.stage);
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
  options.batch = {.sequences = 1, .length = kContext};
  options.exchange_chunks = one.chunks;
  options.generation = true;
  options.cached_tokens = cached;
  options.prompt_rows = one.prompt_rows;
  options.trains = false;
  options.seed = 5;
  return options;
}

void run_on(const Case& one, const TrainerOptions& options,
            const std::function<void(Trainer&, int rank)>& body) {
  const auto model = std::make_shared<const Model>(one.model());
  run_local(one.mesh.world(), {.deadline = std::chrono::seconds(30)}, [&](Communicator world) {
    Trainer trainer(world, model, options);
    body(trainer, world.rank());
  });
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

std::vector<Case> cases() {
  return {
      {"gpt2", [] { return gpt2(); }},
      {"gpt2, few rows", [] { return gpt2(); }, {}, 0, 5},
      {"gpt2, stage 3", [] { return gpt2(); }, {.shard = 2}, 3, 7},
      {"gpt2, pipeline", [] { return gpt2(); }, {.pipeline = 2}, 0, 7},
      {"gpt2, tensor", [] { return gpt2(); }, {.tensor = 2}, 0, 6},
      {"gpt2, tensor in chunks", [] { return gpt2(); }, {.tensor = 2}, 0, 8, 2},
      {"gpt2, tensor, sequence not parallel",
       [] {
         return make_gpt2({.vocabulary = kVocabulary,
                           .context = kContext,
                           .layers = 2,
                           .heads = 4,
                           .channels = 32,
                           .sequence_parallel = false},
                          DType::fp32);
       },
       {.tensor = 2}},
      {"gpt2, padded vocabulary",
       [] {
         return make_gpt2({.vocabulary = kVocabulary,
                           .pad_vocabulary_to = 16,
                           .context = kContext,
                           .layers = 2,
                           .heads = 4,
                           .channels = 32},
                          DType::fp32);
       }},
      {"llama", [] { return llama(4); }},
      {"llama, shared keys", [] { return llama(2); }, {}, 0, 9},
      {"llama, all ranks at once", [] { return llama(2); }, {.pipeline = 2, .shard = 2, .tensor = 2}, 3, 4},
      {"llama, ranks share a head", [] { return llama(2); }, {.tensor = 4}, 0, 12},
      {"llama, adapters",
       [] {
         LlamaConfig config = {.vocabulary = kVocabulary,
                               .context = kContext,
                               .layers = 2,
                               .heads = 4,
                               .kv_heads = 2,
                               .channels = 32,
                               .hidden = 48};
         config.lora = {.rank = 4, .alpha = 8, .targets = {"all-linear"}};
         return make_llama(config, DType::fp32);
       },
       {.shard = 2},
       3,
       6},
      {"gpt2, adapters on tensor ranks in chunks",
       [] {
         Gpt2Config config = {
             .vocabulary = kVocabulary, .context = kContext, .layers = 2, .heads = 4, .channels = 32};
         config.lora = {.rank = 4, .alpha = 8, .targets = {"all-linear"}};
         return make_gpt2(config, DType::fp32);
       },
       {.tensor = 2},
       0,
       8,
       2},
      {"gpt2, frozen parameters",
       [] {
         return with_frozen(gpt2(), {"embed.*", "block.0.*"}, "frozen");
       }},
      {"llama, blocks", [] { return with_tensor_blocks(llama(2, DType::fp32, 32), 2); }, {}, 0, 6},
      {"llama, blocks on ranks",
       [] { return with_tensor_blocks(llama(4, DType::fp32, 32), 4); },
       {.tensor = 2},
       0,
       8},
  };
}

// One token after the other, and many at once: every row of logits is that of the model without a cache.
TEST(CachedGeneration, LogitsAreThoseWithoutACache) {
  for (const Case& one : cases()) {
    run_on(one, options_of(one, kContext), [&](Trainer& trainer, int) {
      for (const std::size_t first : {1U, 5U, 13U, 24U}) {
        trainer.rewind(0);
        std::vector<float> row = trainer.extend(std::span(kText).first(first));
        for (std::size_t read = first;; ++read) {
          EXPECT_LE(distance(row, trainer.logits(std::span(kText).first(read))), 2e-6)
              << one.name << ", " << read << " behind " << first;
          if (read == kText.size()) break;
          row = trainer.extend(std::span(kText).subspan(read, 1));
        }
        EXPECT_TRUE(std::ranges::equal(trainer.cached(), kText));
      }
    });
  }
}

TEST(CachedGeneration, LogitsInBf16) {
  for (const Case& one : {Case{"gpt2", [] { return gpt2(DType::bf16); }},
                          Case{"llama", [] { return llama(2, DType::bf16); }, {.tensor = 2}, 0, 6}})
    run_on(one, options_of(one, kContext), [&](Trainer& trainer, int) {
      std::vector<float> row = trainer.extend(std::span(kText).first(7));
      for (std::size_t read = 7;; ++read) {
        EXPECT_LE(distance(row, trainer.logits(std::span(kText).first(read))), 6e-3) << one.name << read;
        if (read == kText.size()) break;
        row = trainer.extend(std::span(kText).subspan(read, 1));
      }
    });
}

// Stages do not change a bit.
TEST(CachedGeneration, EveryStageHasTheSameBits) {
  const auto rows_of = [&](const Case& one) {
    std::vector<std::vector<float>> rows;
    run_on(one, options_of(one, kContext), [&](Trainer& trainer, int rank) {
      std::vector<std::vector<float>> own = {trainer.extend(std::span(kText).first(9))};
      for (std::size_t read = 9; read < kText.size(); ++read)
        own.push_back(trainer.extend(std::span(kText).subspan(read, 1)));
      if (rank == one.mesh.world() - 1) rows = own;
    });
    return rows;
  };
  const auto expected = rows_of({"", [] { return llama(2); }});
  for (const int stage : {0, 2, 3})
    EXPECT_EQ(rows_of({"", [] { return llama(2); }, {.shard = 2}, stage}), expected) << stage;
  EXPECT_EQ(rows_of({"", [] { return llama(2); }, {.pipeline = 3}}), expected);
}

// Greedy texts are equal; a text goes on behind what the cache has of its beginning.
TEST(CachedGeneration, TextsAreThoseWithoutACache) {
  for (const Case& one : cases()) {
    Text expected;
    run_on(one, options_of(one, 0), [&](Trainer& trainer, int rank) {
      const Text text = trainer.generate({3, 1, 4}, 15, {.temperature = 0.0});
      if (rank == 0) expected = text;
    });
    run_on(one, options_of(one, kContext), [&](Trainer& trainer, int) {
      EXPECT_EQ(trainer.generate({3, 1, 4}, 15, {.temperature = 0.0}), expected) << one.name;
      EXPECT_EQ(trainer.cached().size(), 17U);  // the last token is read by nobody
      EXPECT_EQ(trainer.generate({3, 1, 4}, 15, {.temperature = 0.0}), expected) << one.name;
      const Text more = trainer.generate(expected, 2, {.temperature = 0.0});
      EXPECT_EQ(Text(more.begin(), more.end() - 2), expected) << one.name;
    });
  }
}

TEST(CachedGeneration, EndsWhereItIsTold) {
  const Case one = {"gpt2", [] { return gpt2(); }};
  run_on(one, options_of(one, kContext), [&](Trainer& trainer, int) {
    Text told;
    const Text text = trainer.generate(kText, 0, {});
    EXPECT_EQ(text, kText);
    const Text some = trainer.generate({1, 2}, 20, {.seed = 4}, [&](std::int32_t token) {
      told.push_back(token);
      return told.size() < 6;
    });
    EXPECT_EQ(some.size(), 8U);
    EXPECT_EQ(Text(some.begin() + 2, some.end()), told);
  });
}

// Before and behind a step of training the cache is of other weights.
TEST(CachedGeneration, TrainingForgets) {
  const Case one = {"gpt2", [] { return gpt2(); }};
  TrainerOptions options = options_of(one, kContext);
  options.trains = true;
  run_on(one, options, [&](Trainer& trainer, int) {
    const Text before = trainer.generate({3, 1, 4}, 10, {.temperature = 0.0});
    static_cast<void>(trainer.train_step(0.3, [](int, void* batch) {
      std::copy(kText.begin(), kText.end(), static_cast<std::int32_t*>(batch));
      std::copy(kText.begin(), kText.end(), static_cast<std::int32_t*>(batch) + kContext);
    }));
    EXPECT_TRUE(trainer.cached().empty());
    const std::vector<float> row = trainer.extend(std::span(kText).first(5));
    EXPECT_LE(distance(row, trainer.logits(std::span(kText).first(5))), 1e-5);
  });
}

// So it is behind whatever else changes weights.
TEST(CachedGeneration, WritingWeightsForgets) {
  const Case one = {"gpt2", [] { return gpt2(); }, {.shard = 2}, 3};
  run_on(one, options_of(one, kContext), [&](Trainer& trainer, int) {
    trainer.extend(std::span(kText).first(5));
    EXPECT_EQ(trainer.cached().size(), 5U);
    trainer.engine().initialize([](ParameterId id, std::int64_t begin, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = 0.1F * static_cast<float>((id * 7 + begin + static_cast<std::int64_t>(i)) % 11) - 0.5F;
    });
    EXPECT_TRUE(trainer.cached().empty());
    const std::vector<float> row = trainer.extend(std::span(kText).first(6));
    EXPECT_LE(distance(row, trainer.logits(std::span(kText).first(6))), 1e-4);
    EXPECT_EQ(trainer.cached().size(), 6U);
  });
}

TEST(CachedGeneration, RanksThatRewindApartAreTold) {
  const Case one = {"gpt2", [] { return gpt2(); }, {.tensor = 2}, 0, 6};
  EXPECT_THROW(run_on(one, options_of(one, kContext),
                      [&](Trainer& trainer, int rank) {
                        trainer.extend(std::span(kText).first(5));
                        if (rank == 1) trainer.rewind(3);
                        trainer.extend(Text{9});
                      }),
               CommunicationError);
}

// Of each block two rows of keys and values for each token, in one place for all programs.
TEST(CachedGeneration, MemoryIsThatOfKeysAndValues) {
  const auto cache_of = [](const Case& one, std::int64_t tokens, int pipeline_rank = 0) {
    const TrainerPlan plan = plan_trainer(one.model(), options_of(one, tokens), pipeline_rank);
    return plan.memory.space(Space::device).at_peak[static_cast<std::size_t>(Category::cache)];
  };
  EXPECT_EQ(cache_of({"", [] { return gpt2(); }}, 20), 3 * 2 * 20 * 32 * 4);
  EXPECT_EQ(cache_of({"", [] { return llama(2, DType::bf16); }}, 24), 3 * 2 * 24 * 16 * 2);
  EXPECT_EQ(cache_of({"", [] { return llama(2); }, {.tensor = 2}}, 24), 3 * 2 * 24 * 8 * 4);
  EXPECT_EQ(cache_of({"", [] { return llama(2); }, {.pipeline = 3}}, 24, 1),
            2 * 2 * 24 * 16 * 4);  // 2 of 5 units
  EXPECT_EQ(cache_of({"", [] { return gpt2(); }}, 0), 0);
}

TEST(CachedGeneration, RefusesWhatDoesNotFit) {
  const Case one = {"gpt2", [] { return gpt2(); }};
  const auto planned = [&](const std::function<void(TrainerOptions&)>& change, const Case& of) {
    TrainerOptions options = options_of(of, kContext);
    change(options);
    return refusal([&] { plan_trainer(of.model(), options); });
  };
  EXPECT_THAT(planned([](TrainerOptions& o) { o.cached_tokens = 25; }, one),
              HasSubstr("cached_tokens is 25; model 'gpt2' takes 1 to 24"));
  EXPECT_THAT(planned([](TrainerOptions& o) { o.cached_tokens = -1; }, one),
              HasSubstr("cached_tokens is -1"));
  EXPECT_THAT(planned([](TrainerOptions& o) { o.prompt_rows = 0; }, one), HasSubstr("prompt_rows is 0"));
  EXPECT_THAT(
      planned([](TrainerOptions& o) { o.cached_tokens = 1; }, {"", [] { return gpt2(); }, {.tensor = 2}}),
      HasSubstr("cached_tokens is 1; it must be at least 2"));
  run_on(one, options_of(one, 8), [&](Trainer& trainer, int) {
    EXPECT_THAT(refusal([&] { trainer.extend(std::span(kText).first(9)); }),
                HasSubstr("extend: 9 tokens behind 0 are 9; the cache has place for 8"));
    EXPECT_THAT(
        refusal([&] {
          trainer.generate({1, 2, 3}, 6, {});
        }),
        HasSubstr("generate: the prompt has 3 tokens and count is 6; the cache has place for 8 in all"));
    EXPECT_THAT(refusal([&] { trainer.rewind(1); }), HasSubstr("rewind: count is 1; the cache has 0 tokens"));
    EXPECT_THAT(refusal([&] { trainer.extend({}); }), HasSubstr("extend: there are no tokens"));
    EXPECT_THAT(refusal([&] { trainer.extend(Text{29}); }), HasSubstr("extend: token 29 at place 0"));
    EXPECT_EQ(trainer.generate({1, 2, 3}, 5, {}).size(), 8U);
  });
  run_on(one, options_of(one, 0), [&](Trainer& trainer, int) {
    EXPECT_THAT(refusal([&] { trainer.extend(kText); }), HasSubstr("cached_tokens is 0"));
  });
}

}  // namespace
}  // namespace tessera::testing
