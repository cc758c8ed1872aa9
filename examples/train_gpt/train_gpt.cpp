// Trains a small GPT on a text file, sharded over two ranks: what a program of your own begins with.
//   train_gpt TEXTFILE [STEPS]
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "../arguments.h"
#include "tessera/communicator.h"
#include "tessera/data.h"
#include "tessera/error.h"
#include "tessera/learning_rate.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace {

constexpr char kUsage[] = "usage: train_gpt TEXTFILE [STEPS]\n";
constexpr int kRanks = 2;

tessera::TrainerOptions trainer_options() {
  tessera::TrainerOptions options;
  options.batch = {.sequences = 4, .length = 128};  // one microbatch on one rank
  options.microbatches = 2;
  options.generation = true;
  options.engine.mesh.shard = kRanks;
  options.engine.strategy.placements = tessera::Placements::of_stage(3);  // all states are sharded
  options.engine.strategy.prefetch = 1;
  options.engine.optimizer.options = tessera::AdamWOptions{.beta2 = 0.95, .weight_decay = 0.1};
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay", .weight_decay = 0.0}};
  options.engine.clip.max_norm = 1.0;
  return options;
}

// Runs on every rank, each on a thread of its own.
void train(tessera::Communicator world, const tessera::TokenSource& text, int steps) {
  const bool first = world.rank() == 0;
  const tessera::TrainerOptions options = trainer_options();
  const auto model = std::make_shared<const tessera::Model>(
      tessera::make_gpt2(tessera::Gpt2Config::preset("gpt2-tiny"), tessera::DType::bf16));
  if (first) std::fputs(tessera::memory_table(*model, options).c_str(), stdout);
  tessera::Trainer trainer(world, model, options);

  const tessera::Sampler samples(text, {0, text.numel()}, {.length = options.batch.length, .seed = 1});
  const tessera::SampleGrid grid{.mesh = options.engine.mesh,
                                 .rounds = {.count = options.microbatches},
                                 .sequences = options.batch.sequences};
  const tessera::LearningRateSchedule schedule{.decay = tessera::LearningRateDecay::cosine,
                                               .peak = 1e-3,
                                               .warmup_steps = steps / 10,
                                               .total_steps = steps,
                                               .final_factor = 0.1};
  const auto numel = static_cast<std::size_t>(options.batch.tokens());

  for (int step = 0; step < steps; ++step) {
    // A microbatch is the inputs, then the targets: the inputs one token later.
    const auto fetch = [&](int microbatch, void* batch) {
      auto* tokens = static_cast<std::int32_t*>(batch);
      samples.read(grid.first_sample(step, world.rank(), microbatch), {tokens, numel},
                   {tokens + numel, numel});
    };
    const tessera::StepResult result = trainer.train_step(schedule.learning_rate(step), fetch);
    if (first && (step % 10 == 0 || step + 1 == steps))
      std::printf("step %d  loss %.4f  gradient norm %.3f\n", step, result.loss, result.gradient_norm);
  }

  const std::string prompt = "This ";
  const auto tokens = trainer.generate({prompt.begin(), prompt.end()}, 100, {.temperature = 0.8});
  if (first)
    for (const std::int32_t token : tokens) std::putchar(token);
  if (first) std::putchar('\n');
}

}  // namespace

int main(int argc, char** argv) try {
  if (const auto status = examples::shows_usage(argc, argv, 1, 2, kUsage)) return *status;
  const int steps = argc == 3 ? examples::whole_number("STEPS", argv[2], 1, 1'000'000) : 100;
  const auto text = tessera::TokenSource::open(argv[1], 256);
  tessera::run_local(kRanks, {}, [&](tessera::Communicator world) { train(world, text, steps); });
  return 0;
} catch (const tessera::UsageError& error) {
  std::fprintf(stderr, "train_gpt: %s\n%s", error.what(), kUsage);
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "train_gpt: %s\n", error.what());
  return 1;
}
