// Training whose attention is cuDNN's: the bits of a step, and its memory, which is planned by what cuDNN
// says it takes.
#include <gtest/gtest.h>

#include "tessera/machine.h"
#include "tests/emulated_cuda/cudnn/engines.h"
#include "tests/emulated_cuda/cudnn/stand_in.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/engine/matrix.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

using emulated_cudnn::seen;

RunConfig run_of(Family family) {
  return {.family = family,
          .dtype = DType::bf16,
          .prefetch = 0,
          .strict_order = true,
          .microbatches = 2,
          .steps = 3,
          .device = DeviceType::cuda,
          .attention_dropout = 0,
          .sequences = 2};
}

TEST(CudnnEngine, BitsDoNotDependOnTheProgram) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const int before = seen().runs;
    const RunConfig plain = run_of(family);
    const RunResult expected = run_training(plain);
    // A forward and a backward for each layer and microbatch.
    EXPECT_EQ(seen().runs - before, plain.steps * plain.microbatches * 2 * 2);
    EXPECT_EQ(seen().engine, emulated_cudnn::kRightEngine);
    EXPECT_TRUE(same_bits(run_training(plain), expected)) << "the same run again";
    RunConfig other = plain;
    other.stage = 3;
    other.strict_order = false;
    other.prefetch = 1;
    other.recompute = Recompute::full;
    other.poison = true;
    EXPECT_TRUE(same_bits(run_training(other), expected)) << to_string(other);
    RunConfig on_cpu = plain;
    on_cpu.device = DeviceType::cpu;
    const RunResult near = run_training(on_cpu);
    EXPECT_LT(furthest(expected.losses, near.losses), 2e-2);
    EXPECT_LT(furthest(expected.norms, near.norms), 0.2);
  }
}

// The arena that a rank takes is the one that is planned for its GPU, on whichever GPU; where none is asked,
// the plan has room for any.
TEST(CudnnEngine, TheWorkspaceIsWhatCudnnTakes) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const auto model = std::make_shared<const Model>(small_model(run_of(family)));
    TrainerOptions options = trainer_options(run_of(family));
    const auto planned = [&] {
      return plan_trainer(*model, options).memory.space(Space::device).arena_bytes;
    };
    const std::int64_t bound = planned();
    options.asks_gpu = true;
    const std::int64_t exact = planned();
    EXPECT_GT(bound, exact + 900'000) << "the bound has a MiB to spare";
    options.engine.device_ordinal = 3;
    EXPECT_EQ(planned(), exact) << "of another GPU";
    options.engine.device_ordinal = 0;
    options.asks_gpu = false;
    Trainer trainer(make_local_world(1)[0], model, options);
    EXPECT_EQ(trainer.engine().plan().space(Space::device).arena_bytes, exact);
  }
}

// A plan leaves nothing of cuDNN's behind. An engine makes what its steps need before the arena, and counts
// it.
TEST(CudnnEngine, WhatCudnnTakesIsCountedBeforeTheArena) {
  const auto model = std::make_shared<const Model>(small_model(run_of(Family::gpt2)));
  TrainerOptions options = trainer_options(run_of(Family::gpt2));
  options.engine.device_ordinal = 5;  // on which nothing has run
  options.asks_gpu = true;
  const std::int64_t before = read_gpu_used_bytes(5);
  const int descriptors = emulated_cudnn::left_over();
  plan_trainer(*model, options);
  EXPECT_EQ(emulated_cudnn::left_over(), descriptors);
  EXPECT_EQ(read_gpu_used_bytes(5), before);

  options.asks_gpu = false;
  Trainer trainer(make_local_world(1)[0], model, options);
  EXPECT_GE(trainer.engine().library_bytes(), emulated_cudnn::kHandleBytes);
  EXPECT_LT(trainer.engine().library_bytes(), 2 * emulated_cudnn::kHandleBytes + emulated_cuda::kMatmulBytes);
  const emulated_cudnn::Seen at_start = seen();
  trainer.train_step(3e-3, fetch_for(run_of(Family::gpt2), 0, 0, *model, options.batch));
  EXPECT_GT(seen().runs, at_start.runs);
  EXPECT_EQ(seen().graphs, at_start.graphs) << "a step compiles nothing";
  EXPECT_EQ(seen().handles, at_start.handles);
}

// As without attention by cuDNN.
TEST(CudnnEngine, AGpuThatIsNotThereIsRefusedAsEver) {
  TrainerOptions options = trainer_options(run_of(Family::gpt2));
  options.engine.device_ordinal = 40;
  const auto model = std::make_shared<const Model>(small_model(run_of(Family::gpt2)));
  expect_words(refusal<EnvironmentError>([&] { Trainer(make_local_world(1)[0], model, options); }),
               {"GPU 40"});
}

}  // namespace
}  // namespace tessera::testing
