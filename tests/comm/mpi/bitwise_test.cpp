// Ranks as processes train to the same bits as ranks as threads, in cells of the matrix of
// tests/engine/bitwise_matrix_test.cpp.
#include <gtest/gtest.h>

#include "tests/comm/mpi/harness.h"
#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

// `direct`: whether the ranks should read each other's arenas.
RunResult train_on(Communicator world, const RunConfig& run, bool direct) {
  const auto model = std::make_shared<const Model>(small_model(run));
  const TrainerOptions options = trainer_options(run);
  Trainer trainer(world, model, options);
  EXPECT_EQ(trainer.engine().arena_registration().direct, direct)
      << trainer.engine().arena_registration().reason;
  RunResult result;
  for (int step = 0; step < run.steps; ++step) {
    const StepResult done =
        trainer.train_step(3e-3, fetch_samples(mesh_of(run).data_rank(world.rank()), mesh_of(run),
                                               rounds_of(run), step, model->vocabulary, options.batch));
    EXPECT_TRUE(done.applied) << "step " << step;
    result.losses.push_back(done.loss);
    result.norms.push_back(done.gradient_norm);
  }
  result.weights = read_weights(trainer.engine());
  return result;
}

// Every process runs both, so that all learn of a difference; the threads' runs are one after the other.
void expect_same_bits(RunConfig run, const MpiOptions& options = {}) {
  if (run.tensor > 1)
    run.tensor = mpi_processes(), run.world = 1;
  else
    run.world = mpi_processes();
  RunResult processes;
  const bool one_host =
      mpi_hosts() == 1 && (options.ranks_per_host == 0 || options.ranks_per_host >= mpi_processes());
  run_mpi(options, [&](Communicator world) { processes = train_on(world, run, options.direct && one_host); });
  RunResult threads;
  run_mpi({}, [&](Communicator world) {
    if (world.rank() == 0) threads = run_training(run);
    std::int64_t numel = static_cast<std::int64_t>(threads.weights.size());
    world.broadcast(&numel, sizeof numel, 0);
    threads.weights.resize(static_cast<std::size_t>(numel));
    world.broadcast(threads.weights.data(), numel * 4, 0);
    threads.losses.resize(static_cast<std::size_t>(run.steps));
    threads.norms.resize(static_cast<std::size_t>(run.steps));
    world.broadcast(threads.losses.data(), run.steps * 8, 0);
    world.broadcast(threads.norms.data(), run.steps * 8, 0);
  });
  EXPECT_LT(processes.losses.back(), processes.losses.front()) << "the run does not learn";
  EXPECT_TRUE(same_bits(processes, threads)) << to_string(run);
}

TEST(BitwiseMpi, Stage0ReducingLast) { expect_same_bits({.stage = 0, .reduce = ReduceWhen::last}); }

TEST(BitwiseMpi, Stage1InBf16) {
  expect_same_bits({.stage = 1, .reduce = ReduceWhen::last, .dtype = DType::bf16});
}

TEST(BitwiseMpi, Stage2ReducingEachInBf16) { expect_same_bits({.stage = 2, .dtype = DType::bf16}); }

TEST(BitwiseMpi, Stage3WithOverlapAndRecompute) {
  expect_same_bits({.stage = 3, .prefetch = 2, .recompute = Recompute::full, .poison = true});
}

TEST(BitwiseMpi, Stage3InOrderWithResidentUnits) {
  expect_same_bits({.stage = 3,
                    .reduce = ReduceWhen::last,
                    .dtype = DType::bf16,
                    .strict_order = true,
                    .resident_units = 2});
}

TEST(BitwiseMpi, LlamaStage1ReducingLast) {
  expect_same_bits({.family = Family::llama, .stage = 1, .reduce = ReduceWhen::last});
}

TEST(BitwiseMpi, LlamaStage2InBf16) {
  expect_same_bits({.family = Family::llama, .stage = 2, .dtype = DType::bf16});
}

TEST(BitwiseMpi, LlamaStage3WithRecomputeInBf16) {
  expect_same_bits({.family = Family::llama,
                    .stage = 3,
                    .dtype = DType::bf16,
                    .prefetch = 2,
                    .recompute = Recompute::full,
                    .poison = true});
}

TEST(BitwiseMpi, LlamaStage3OverMessages) {
  expect_same_bits({.family = Family::llama, .stage = 3}, {.ranks_per_host = 1});
}

// All processes are tensor ranks: values go between them, by each other's memory and by messages.
TEST(BitwiseMpi, TensorRanks) {
  if (12 % mpi_processes() != 0) GTEST_SKIP() << "heads cannot be dealt to " << mpi_processes() << " ranks";
  for (const Family family : {Family::gpt2, Family::llama})
    expect_same_bits({.family = family, .tensor = 2, .stage = 3, .poison = true, .heads = 12});
  expect_same_bits({.tensor = 2, .poison = true, .heads = 12, .exchange_chunks = 3});
}

TEST(BitwiseMpi, TensorRanksOverMessagesInBf16) {
  if (12 % mpi_processes() != 0) GTEST_SKIP() << "heads cannot be dealt to " << mpi_processes() << " ranks";
  for (const int chunks : {1, 3})
    expect_same_bits(
        {.family = Family::llama, .tensor = 2, .dtype = DType::bf16, .heads = 12, .exchange_chunks = chunks},
        {.ranks_per_host = 1});
}

// The last round is of one rank.
TEST(BitwiseMpi, Stage3WhereRanksRest) {
  expect_same_bits({.stage = 3, .last_round_ranks = 1, .poison = true});
}

TEST(BitwiseMpi, Stage1WhereRanksRestThroughSharedBuffers) {
  expect_same_bits({.stage = 1, .last_round_ranks = 1}, {.direct = false});
}

TEST(BitwiseMpi, Stage2WhereRanksRestOverMessages) {
  expect_same_bits({.stage = 2, .last_round_ranks = 1}, {.ranks_per_host = 1});
}

TEST(BitwiseMpi, Stage2ThroughSharedBuffers) { expect_same_bits({.stage = 2}, {.direct = false}); }

TEST(BitwiseMpi, Stage3ThroughSharedBuffersInBf16) {
  expect_same_bits({.stage = 3, .dtype = DType::bf16}, {.direct = false});
}

TEST(BitwiseMpi, Stage3OverMessages) { expect_same_bits({.stage = 3}, {.ranks_per_host = 1}); }

TEST(BitwiseMpi, Stage2OverMessagesBetweenPairs) {
  expect_same_bits({.stage = 2, .reduce = ReduceWhen::last, .dtype = DType::bf16}, {.ranks_per_host = 2});
}

}  // namespace
}  // namespace tessera::testing
