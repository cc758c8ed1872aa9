// Rows behind the vocabulary begin as 0 and stay 0, and change no bit of the loss, the gradient or the
// logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kVocabulary = 61, kChannels = 32, kLength = 8;

struct Case {
  bool llama = true, tied = false;
  int tensor = 1, stage = 0;
  DType type = DType::fp32;
};

Model model_of(const Case& run, std::int64_t multiple) {
  if (!run.llama)
    return make_gpt2({.vocabulary = kVocabulary,
                      .pad_vocabulary_to = multiple,
                      .context = kLength,
                      .layers = 1,
                      .heads = 2,
                      .channels = kChannels},
                     run.type);
  return make_llama({.vocabulary = kVocabulary,
                     .pad_vocabulary_to = multiple,
                     .context = kLength,
                     .layers = 1,
                     .heads = 2,
                     .kv_heads = 2,
                     .channels = kChannels,
                     .hidden = 48,
                     .tied = run.tied},
                    run.type);
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<float> logits;
  std::map<std::string, std::vector<float>> tables;  // of tokens
};

// Three steps of a few microbatches with weight decay.
Trained train(const Case& run, std::int64_t multiple) {
  const auto model = std::make_shared<const Model>(model_of(run, multiple));
  TrainerOptions options;
  options.engine.mesh.tensor = run.tensor;
  options.engine.mesh.shard = 2;
  options.engine.strategy.placements = Placements::of_stage(run.stage);
  options.engine.optimizer = {.options = AdamWOptions{.weight_decay = 0.1},
                              .groups = {{.name = "decay"}, {.name = "no_decay"}}};
  options.engine.clip.max_norm = 0.0;
  options.batch = {.sequences = 1, .length = kLength};
  options.microbatches = 2;
  options.generation = true;
  Trained result;
  run_local(2 * run.tensor, {.deadline = std::chrono::seconds(20)}, [&](Communicator world) {
    const bool first = world.rank() == 0;
    Trainer trainer(world, model, options);
    for (int step = 0; step < 3; ++step) {
      const StepResult done = trainer.train_step(1e-2, [&](int microbatch, void* batch) {
        auto* const tokens = static_cast<std::int32_t*>(batch);
        for (std::int64_t i = 0; i < 2 * kLength; ++i)
          tokens[i] = static_cast<std::int32_t>((i * 7 + microbatch * 5 + step) % kVocabulary);
      });
      if (first) result.losses.push_back(done.loss), result.norms.push_back(done.gradient_norm);
    }
    const std::vector<float> logits = trainer.logits(std::vector<std::int32_t>{1, 2, 60});
    if (first) result.logits = logits;
    for (ParameterId id = 0; id < trainer.engine().layout().parameters(); ++id) {
      const ParameterSpec& spec = trainer.engine().layout().parameter(id);
      if (!spec.tied_to.empty() || (spec.name != "embed.token" && spec.name != "head.weight")) continue;
      std::vector<float> values(static_cast<std::size_t>(numel_of(spec.shape)));
      trainer.engine().read(id, StateKind::master, 0, values);
      if (first) result.tables[spec.name] = values;
    }
  });
  return result;
}

TEST(PaddedVocabulary, TakesPartInNothing) {
  for (const Case& run : {Case{.llama = false},
                          {.tied = true, .type = DType::bf16},
                          {},
                          {.type = DType::bf16},
                          {.stage = 3},
                          {.llama = false, .tensor = 2, .stage = 3},
                          {.tensor = 2},
                          {.tied = true, .tensor = 2, .stage = 2}})
    for (const std::int64_t multiple : {64, 100}) {
      const Trained plain = train(run, 1), padded = train(run, multiple);
      if (run.tensor == 1) {
        EXPECT_EQ(padded.losses, plain.losses);
        EXPECT_EQ(padded.logits, plain.logits);
      }
      ASSERT_EQ(padded.logits.size(), static_cast<std::size_t>(kVocabulary));
      for (std::size_t k = 0; k < plain.losses.size(); ++k) {
        EXPECT_NEAR(padded.losses[k], plain.losses[k], 1e-5);
        EXPECT_NEAR(padded.norms[k], plain.norms[k], 1e-5);
      }
      ASSERT_EQ(padded.tables.size(), plain.tables.size());
      for (const auto& [name, values] : padded.tables) {
        ASSERT_EQ(values.size(), static_cast<std::size_t>(multiple * kChannels)) << name;
        const auto end = values.begin() + kVocabulary * kChannels;
        EXPECT_TRUE(std::all_of(end, values.end(), [](float value) { return value == 0.0F; })) << name;
        EXPECT_TRUE(run.tensor > 1 || std::equal(values.begin(), end, plain.tables.at(name).begin()));
      }
    }
}

}  // namespace
}  // namespace tessera::testing
