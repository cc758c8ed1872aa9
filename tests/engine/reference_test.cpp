// Twenty fp32 steps against an independent float64 implementation of the same model, data, dropout, clipping
// and AdamW.
#include <gtest/gtest.h>

#include "src/nn/initialize.h"
#include "tests/engine/matrix.h"
#include "tests/nn/dropout_keep.h"
#include "tests/nn/reference_gpt2.h"

namespace tessera::testing {
namespace {

// The library's own initial values, by name.
void set_initial_values(reference::Gpt2& reference, const Model& model, std::uint64_t seed) {
  for (const auto& module : model.modules) {
    const std::vector<ParameterSpec> specs = module->parameters();
    const std::vector<Initial> initials = module->initials();
    for (std::size_t k = 0; k < specs.size(); ++k) {
      if (!specs[k].tied_to.empty()) continue;
      std::vector<float> values(static_cast<std::size_t>(numel_of(specs[k].shape)));
      initial_values(initials[k], seed, specs[k].name, 0, values);
      reference.parameters.at(specs[k].name).value.assign(values.begin(), values.end());
    }
  }
}

// What a step drops of the sequences from `first` on among all of its.
reference::Keep keep_of(double share, std::uint64_t seed, int step, std::int64_t first) {
  return reference_keep(share, first, [=](std::size_t unit) {
    return random_key(seed, 0x64726F70'00000000 + unit, static_cast<std::uint64_t>(step));
  });
}

std::vector<double> reference_losses(const RunConfig& run) {
  const Gpt2Config config = small_gpt(run.layers);
  const auto dims = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  reference::Gpt2 reference({.vocabulary = dims(config.vocabulary),
                             .context = dims(config.context),
                             .layers = dims(config.layers),
                             .heads = dims(config.heads),
                             .channels = dims(config.channels)});
  const TrainerOptions options = trainer_options(run);
  set_initial_values(reference, make_gpt2(config, DType::fp32), options.seed);
  std::vector<double> losses;
  std::vector<std::int32_t> batch(dims(2 * options.batch.tokens()));
  for (int step = 0; step < run.steps; ++step) {
    reference::Loss total;
    for (int microbatch = 0; microbatch < run.microbatches; ++microbatch)
      for (int rank = 0; rank < run.world; ++rank) {
        fetch_samples(rank, run.world, run.microbatches, step, config.vocabulary, options.batch)(
            microbatch, batch.data());
        const std::span<const std::int32_t> tokens(batch);
        const std::int64_t first = (microbatch * run.world + rank) * options.batch.sequences;
        reference.keep = keep_of(config.dropout, options.seed, step, first);
        reference.keep_attention = keep_of(config.attention_dropout, options.seed, step, first);
        const reference::Loss loss = reference.accumulate({.inputs = tokens.first(batch.size() / 2),
                                                           .targets = tokens.last(batch.size() / 2),
                                                           .sequences = dims(options.batch.sequences),
                                                           .length = dims(options.batch.length)});
        total.sum += loss.sum;
        total.counted += loss.counted;
      }
    losses.push_back(total.mean());
    reference.update({.learning_rate = 3e-3, .weight_decay = 0.1, .max_norm = run.max_norm}, total.counted);
  }
  return losses;
}

TEST(Reference, Fp32LossesAgreeWithFloat64OverTwentySteps) {
  for (int world : {1, 2}) {
    const RunConfig run{.world = world, .stage = 3, .dtype = DType::fp32};
    const std::vector<double> expected = reference_losses(run);
    const std::vector<double> losses = run_training(run).losses;
    ASSERT_EQ(losses.size(), expected.size());
    EXPECT_LT(expected.back(), 0.9 * expected.front());
    for (std::size_t step = 0; step < losses.size(); ++step)
      EXPECT_NEAR(losses[step], expected[step], 1e-5 * expected[step])
          << "world " << world << " step " << step;
  }
}

TEST(Reference, Bf16LossesStayClose) {
  const RunConfig run{.world = 2, .stage = 3, .dtype = DType::bf16};
  const std::vector<double> expected = reference_losses(run);
  const std::vector<double> losses = run_training(run).losses;
  for (std::size_t step = 0; step < losses.size(); ++step)
    EXPECT_NEAR(losses[step], expected[step], 0.02 * expected[step]) << "step " << step;
}

}  // namespace
}  // namespace tessera::testing
