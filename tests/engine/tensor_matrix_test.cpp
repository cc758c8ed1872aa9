// Tensor ranks: layers that several ranks split train as one rank does, and no strategy changes a bit.
#include <gtest/gtest.h>

#include "tessera/checkpoint.h"
#include "tests/engine/matrix.h"
#include "tests/program/random_strategy.h"
#include "tests/program/sanitized.h"
#include "tests/program/seeds.h"
#include "tests/refusal.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

RunConfig base(Family family, DType dtype) {
  return {.family = family, .reduce = ReduceWhen::each, .dtype = dtype, .poison = true, .heads = 4};
}

struct Cell {
  Family family;
  DType dtype;
  int layers = 2;
  int kv_heads = 0;
};
RunConfig base(const Cell& cell) {
  RunConfig run = base(cell.family, cell.dtype);
  run.layers = cell.layers;
  run.kv_heads = cell.kv_heads;
  return run;
}

// Losses and norms differ by rounding.
void expect_near(const RunConfig& run, const RunResult& found, const RunResult& expected) {
  const bool fp32 = run.dtype == DType::fp32;
  EXPECT_LT(furthest(found.losses, expected.losses), fp32 ? 1e-6 : 2e-3) << to_string(run);
  EXPECT_LT(furthest(found.norms, expected.norms), fp32 ? 1e-5 : 5e-2) << to_string(run);
}

// Neither ZeRO stages, recomputation, prefetch, order, shards, pipelines nor the place of activations.
void expect_few_strategies_change_no_bit(RunConfig run) {
  run.steps = 4;
  const RunResult expected = run_training(run);
  int variant = 0;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
    for (const int prefetch : {0, 1}) {
      RunConfig other = dealt(run, 1, 1 + variant % 2);
      other.stage = ++variant % 4;
      other.recompute = recompute;
      other.prefetch = prefetch;
      other.strict_order = variant == 1;
      if (prefetch > 0 && other.family == Family::llama) other.pipeline = 2;
      if (variant == 6 && other.pipeline > 1) other.schedule.schedule = PipelineSchedule::zb_h1;
      if (variant == 3) other.offload.activations = Space::host;
      const RunResult result = run_training(other);
      EXPECT_TRUE(same_bits(result, expected)) << to_string(other);
      EXPECT_EQ(result.fingerprint, expected.fingerprint) << to_string(other);
    }
}

class TensorMatrix : public ::testing::TestWithParam<Cell> {};

TEST_P(TensorMatrix, LossesAreThoseOfOneRank) {
  RunConfig run = base(GetParam());
  const RunResult alone = known_run(run);
  EXPECT_NE(alone.losses.front(), alone.losses.back()) << "the reference run does not learn";
  for (const int ranks : {2, 4}) {
    run.tensor = ranks;
    const RunResult split = known_run(run);
    expect_near(run, split, alone);
    ASSERT_EQ(split.weights.size(), alone.weights.size());
  }
}

// All of them on two tensor ranks, or on four that share heads of keys and values.
TEST_P(TensorMatrix, NoStrategyChangesABit) {
  RunConfig run = base(GetParam());
  run.tensor = GetParam().kv_heads > 0 ? 4 : 2;
  run.steps = 6;
  const RunResult expected = run_training(run);
  // Its pipelines would make two sums, not one, or there is one unit only.
  const bool one_part = GetParam().family == Family::gpt2 || GetParam().layers == 0;
  int variant = 0;
  for (const int stage : {0, 1, 2, 3})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      RunConfig other = dealt(run, 1, 1 + variant % 2);
      other.stage = stage;
      other.recompute = recompute;
      other.prefetch = ++variant % 3;
      other.strict_order = variant % 5 == 0;
      other.pipeline = variant % 4 == 0 && !one_part ? 2 : 1;
      if (variant % 3 == 0 && recompute != Recompute::none) other.offload.activations = Space::host;
      if (variant % 6 == 1) other.offload.states = Space::host;
      EXPECT_TRUE(same_bits(run_training(other), expected)) << to_string(other);
    }
}

bool cuts_exchanges(const RunConfig& run) { return run.family != Family::mlp; }

// Chunks deal other rows of the residual stream to the ranks, and no more.
TEST_P(TensorMatrix, InChunksLossesAreThoseOfOneRank) {
  RunConfig run = base(GetParam());
  if (!cuts_exchanges(run)) return;
  const RunResult alone = known_run(run);
  run.exchange_chunks = 3;
  for (const int ranks : {2, 4}) {
    run.tensor = ranks;
    const RunResult chunks = known_run(run);
    expect_near(run, chunks, alone);
    RunConfig whole = run;
    whole.exchange_chunks = 1;
    // Not the bits: a rank's part of the gradients of norms is of other rows.
    EXPECT_NE(known_run(whole).norms, chunks.norms) << to_string(run) << " has no chunks";
    EXPECT_NE(known_run(whole).fingerprint, chunks.fingerprint);
  }
}

// The same where each rank has all rows of the residual stream.
TEST_P(TensorMatrix, WithAllRowsLossesAreThoseOfOneRank) {
  RunConfig run = base(GetParam());
  if (!cuts_exchanges(run)) return;
  const RunResult alone = known_run(run);
  run.sequence_parallel = false;
  EXPECT_TRUE(same_bits(known_run(run), alone)) << "one rank has all rows anyway";
  for (const int ranks : {2, 4}) {
    run.tensor = ranks;
    const RunResult all = known_run(run);
    expect_near(run, all, alone);
    RunConfig split = run;
    split.sequence_parallel = true;
    EXPECT_NE(known_run(split).norms, all.norms) << to_string(run);
    EXPECT_NE(known_run(split).fingerprint, all.fingerprint);
  }
}

TEST_P(TensorMatrix, WithAllRowsNoStrategyChangesABit) {
  RunConfig run = base(GetParam());
  if (!cuts_exchanges(run)) return;
  run.tensor = GetParam().kv_heads > 0 ? 4 : 2;
  run.sequence_parallel = false;
  expect_few_strategies_change_no_bit(run);
}

TEST_P(TensorMatrix, InChunksNoStrategyChangesABit) {
  RunConfig run = base(GetParam());
  if (!cuts_exchanges(run)) return;
  run.tensor = GetParam().kv_heads > 0 ? 4 : 2;
  run.exchange_chunks = 3;
  expect_few_strategies_change_no_bit(run);
}

// One, two and four ranks, and what else changes no bit on one width.
TEST_P(TensorMatrix, WithBlocksNoWidthChangesABit) {
  RunConfig run = base(GetParam());
  run.heads = run.family == Family::llama ? 8 : 32;  // a block's biases are whole blocks of squares
  run.steps = 6;
  const RunResult without = run_training(run);
  run.tensor_blocks = 4;
  const RunResult expected = run_training(run);
  const bool fp32 = run.dtype == DType::fp32;
  EXPECT_NE(expected.losses.front(), expected.losses.back()) << "the reference run does not learn";
  EXPECT_LT(furthest(expected.losses, without.losses), fp32 ? 1e-6 : 2e-3);
  EXPECT_LT(furthest(expected.norms, without.norms), fp32 ? 3e-5 : 5e-2);
  int variant = 0;
  for (const int ranks : {1, 2, 4})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      RunConfig other = dealt(run, 1, 1 + variant % 2);
      other.tensor = ranks;
      other.stage = ++variant % 4;
      other.recompute = recompute;
      other.prefetch = variant % 3;
      // As above.
      const bool one_part = other.family == Family::gpt2 || other.layers == 0;
      if (recompute != Recompute::none && !one_part) other.pipeline = 2;
      if (recompute == Recompute::full && !one_part) other.schedule.schedule = PipelineSchedule::zb_h1;
      const RunResult result = run_training(other);
      EXPECT_TRUE(same_bits(result, expected)) << to_string(other);
      EXPECT_EQ(result.fingerprint, expected.fingerprint) << to_string(other);
    }
}

// Each rank writes the logits of its blocks' rows of the vocabulary.
TEST(TensorMatrix, WithBlocksNoWidthChangesALogit) {
  RunConfig run = base(Family::llama, DType::fp32);
  run.heads = 8;
  run.tensor_blocks = 4;
  std::vector<float> expected;
  for (const int ranks : {1, 2, 4}) {
    run.tensor = ranks;
    const auto model = std::make_shared<const Model>(small_model(run));
    TrainerOptions options = trainer_options(run);
    options.generation = true;
    std::vector<std::vector<float>> logits(static_cast<std::size_t>(ranks));
    run_local(ranks, {}, [&](Communicator world) {
      Trainer trainer(world, model, options);
      logits[static_cast<std::size_t>(world.rank())] =
          trainer.logits(std::vector<std::int32_t>{3, 1, 4, 1, 5});
    });
    if (expected.empty()) expected = logits[0];
    ASSERT_EQ(static_cast<std::int64_t>(expected.size()), model->vocabulary);
    for (const std::vector<float>& own : logits) EXPECT_EQ(own, expected) << ranks << " ranks";
  }
  EXPECT_NE(expected.front(), expected.back());
}

std::string refusal_of(const RunConfig& run) {
  return refusal([&] { plan_trainer(small_model(run), trainer_options(run), 0); });
}

TEST(TensorMatrix, BlocksThatCannotBeAreRefused) {
  RunConfig run = base(Family::gpt2, DType::fp32);
  const auto wrapped = [&](int blocks) {
    return refusal([&] { with_tensor_blocks(small_model(run), blocks); });
  };
  EXPECT_EQ(wrapped(3), "tensor_blocks is 3; it must be a power of two, 1 for no blocks");
  EXPECT_EQ(
      wrapped(4),
      "tensor_blocks is 4: a block of parameter 'block.0.attention.qkv.bias' has 24 elements; it must have "
      "a multiple of 64, so that the gradients' norm is one sum on any number of ranks");
  run.heads = 32;
  run.tensor_blocks = 2;
  EXPECT_EQ(wrapped(2), "model 'gpt2' has 2 tensor blocks already");
  run.tensor = 4;
  EXPECT_EQ(
      refusal_of(run),
      "tensor_blocks is 2 and there are 4 tensor ranks: each has as many blocks, so make tensor_blocks a "
      "multiple of the ranks");
  run.tensor = 1;
  TrainerOptions native = trainer_options(run);
  native.engine.strategy.reduction = Reduction::native;
  EXPECT_EQ(
      refusal([&] { plan_trainer(small_model(run), native, 0); }),
      "model 'gpt2' has 2 tensor blocks and strategy.reduction is native, whose sums have no order; use "
      "exact");
}

// What a rank receives from the others along the axis in a microbatch, counted by hand.
std::int64_t received_by_mlp(const RunConfig& run) {
  const MlpConfig config = small_mlp(run.layers);
  const std::int64_t others = run.tensor - 1, rows = 12 / run.tensor, bytes = bytes_of(run.dtype);
  std::int64_t columns = 0;  // times their bytes
  for (std::size_t layer = 1; layer < config.hidden.size(); ++layer)
    columns += layer % 2 == 1 ? config.hidden[layer] * (4 + bytes)           // a sum, its gradient
                              : config.hidden[layer - 1] * (2 * bytes + 4);  // the input, twice; its gradient
  columns += config.hidden.size() % 2 == 1 ? config.classes * (4 + 4) : 4;   // logits, or losses
  return others * rows * columns;
}

std::int64_t received_by_transformer(const RunConfig& run) {
  const std::int64_t others = run.tensor - 1, channels = 8 * run.heads, rows = 12 / run.tensor;
  const std::int64_t gathered = others * rows * channels * bytes_of(run.dtype);  // of values of the stream
  const std::int64_t summed = others * rows * channels * 4;                      // of partial sums, in fp32
  const bool all_rows = !run.sequence_parallel;  // a backward then gathers no norm again
  std::int64_t block = (2 + (all_rows ? 2 : 4)) * gathered + (2 + 2) * summed;
  // Keys and values of heads that several ranks share are gathered, and their gradients summed.
  if (run.kv_heads > 0 && run.kv_heads < run.tensor)
    block += 2 * others * 12 * 2 * run.kv_heads * 8 / run.tensor * bytes_of(run.dtype);
  // Rows of the table are summed in the model's type; where all are wanted, the sum is gathered in fp32.
  const std::int64_t embedding = gathered + (all_rows ? summed : gathered);
  const std::int64_t head = gathered + summed + others * 12 * 12;  // three numbers of a row of logits
  return run.layers * block + embedding + head;
}

// The same of a step.
std::int64_t received_bytes(const RunConfig& run, const Layout& layout) {
  const std::int64_t others = run.tensor - 1;
  std::int64_t bytes =
      run.microbatches * (run.family == Family::mlp ? received_by_mlp(run) : received_by_transformer(run));
  for (const Flat& flat : layout.flats())  // gradients of copies: summed by pieces, and gathered
    if (flat.over == TensorShare::partial) bytes += 2 * others * flat.piece_numel * 4;
  return bytes;
}

TEST_P(TensorMatrix, RanksReceiveWhatTheFormulaSays) {
  for (const int ranks : {2, 4}) {
    RunConfig run = base(GetParam());
    run.tensor = ranks;
    if (ranks == 2 && cuts_exchanges(run)) run.exchange_chunks = 3;  // which changes no byte
    if (ranks == 4) run.sequence_parallel = false;
    const auto model = std::make_shared<const Model>(small_model(run));
    run_local(ranks, {}, [&](Communicator world) {
      const TrainerOptions options = trainer_options(run);
      Trainer trainer(world, model, options);
      const std::int64_t before = trainer.engine().bytes_received(Axis::tensor);
      trainer.train_step(1e-3, fetch_for(run, world.rank(), 0, *model, options.batch));
      EXPECT_EQ(trainer.engine().bytes_received(Axis::tensor) - before,
                received_bytes(run, trainer.engine().layout()))
          << to_string(run);
    });
  }
}

// They are of samples that the model was not trained on. A training step leaves the last unit's work to
// backward; an evaluation does not.
TEST_P(TensorMatrix, EvaluationsAreThoseOfOneRank) {
  RunConfig run = base(GetParam());
  const auto evaluated = [&](int ranks) {
    run.tensor = ranks;
    run.exchange_chunks = ranks == 4 && cuts_exchanges(run) ? 3 : 1;
    run.sequence_parallel = ranks != 2;
    const auto model = std::make_shared<const Model>(small_model(run));
    IdVector<double> losses(ranks);
    run_local(ranks, {}, [&](Communicator world) {
      TrainerOptions options = trainer_options(run);
      options.evaluation_microbatches = 3;
      Trainer trainer(world, model, options);
      losses[world.rank()] = trainer.evaluate(fetch_for(run, world.rank(), 9, *model, options.batch)).loss;
    });
    for (const double loss : losses) EXPECT_EQ(loss, losses[0]);
    return losses[0];
  };
  const double alone = evaluated(1);
  for (const int ranks : {2, 4})
    EXPECT_NEAR(evaluated(ranks), alone, (run.dtype == DType::fp32 ? 1e-6 : 2e-3) * alone) << to_string(run);
}

// Losses of steps [begin, end) on so many tensor ranks, between what `before` and `behind` do, and the
// weights behind the first.
struct Stretch {
  std::vector<double> losses;
  std::vector<float> weights;
};
template <class Before, class Behind>
Stretch stretch(const RunConfig& run, int begin, int end, const Before& before, const Behind& behind) {
  const auto model = std::make_shared<const Model>(small_model(run));
  Stretch result;
  run_local(ranks_of(run), {}, [&](Communicator world) {
    const TrainerOptions options = trainer_options(run);
    Trainer trainer(world, model, options);
    before(world, trainer.engine());
    std::vector<float> weights = read_weights(trainer.engine());
    std::vector<double> losses;
    for (int step = begin; step < end; ++step)
      losses.push_back(
          trainer.train_step(3e-3, fetch_for(run, world.rank(), step, *model, options.batch)).loss);
    behind(world, trainer.engine());
    if (world.rank() == 0) result = {std::move(losses), std::move(weights)};
  });
  return result;
}

TEST_P(TensorMatrix, ARunGoesOnAtAnyWidth) {
  const auto nothing = [](Communicator, Engine&) {};
  RunConfig run = base(GetParam());
  const std::vector<double> through = stretch(run, 0, 8, nothing, nothing).losses;
  for (const int saves : {1, 4}) {
    const TemporaryFolder folder;
    run.tensor = saves;
    run.sequence_parallel = true;
    std::vector<float> saved;
    stretch(run, 0, 4, nothing, [&](Communicator world, Engine& engine) {
      save_checkpoint(folder.file("run"), world, engine, {.step = 4, .configuration = {}});
      std::vector<float> weights = read_weights(engine);
      if (world.rank() == 0) saved = std::move(weights);
    });
    for (const int loads : {1, 2, 4}) {
      run.tensor = loads;
      run.stage = loads == 2 ? 3 : 0;
      run.sequence_parallel = loads != saves;  // it changes no parameter
      const Stretch rest = stretch(
          run, 4, 8,
          [&](Communicator world, Engine& engine) { load_checkpoint(folder.file("run"), world, engine); },
          nothing);
      EXPECT_TRUE(same_bits("weights", rest.weights, saved)) << saves << " to " << to_string(run);
      EXPECT_LT(furthest(rest.losses, {through.begin() + 4, through.end()}),
                run.dtype == DType::fp32 ? 1e-6 : 2e-3)
          << saves << " to " << to_string(run);
    }
  }
}

// A mesh over all axes, and what changes no bit.
RunConfig drawn_run(std::uint64_t seed) {
  Draws draws(seed);
  RunConfig run =
      base(draws.chance(25) ? Family::mlp : Family::llama, draws.among<DType>({DType::fp32, DType::bf16}));
  if (run.family == Family::llama) run.kv_heads = draws.among<int>({1, 2, 4});
  if (draws.chance(30)) run.tensor_blocks = 4, run.heads = run.family == Family::llama ? 8 : 32;
  run.steps = 3;
  run.layers = 3;
  run.microbatches = draws.pick(1, 4);
  run.tensor = draws.among<int>({1, 2, 2, 4});
  run.pipeline = draws.among<int>({1, 2, 2, 4});
  run.replicate = draws.among<int>({1, 2});
  while (ranks_of(run) > 16) run.pipeline /= 2;
  run.world = std::min(draws.pick(1, 3), 16 / ranks_of(run));
  if (run.tensor > 1 && run.tensor_blocks == 1 && cuts_exchanges(run) && draws.chance(40))
    run.exchange_chunks = 3;
  else if (cuts_exchanges(run))
    run.sequence_parallel = !draws.chance(25);
  if (draws.chance(30)) run.reduce = ReduceWhen::last;
  run.stage = draws.pick(0, 3);
  run.prefetch = draws.pick(0, 2);
  run.strict_order = draws.chance(15);
  if (run.pipeline > 1)
    run.schedule.schedule = draws.among<PipelineSchedule>(
        {PipelineSchedule::one_forward_one_backward, PipelineSchedule::gpipe, PipelineSchedule::zb_h1});
  if (run.pipeline == 2 && seed % 3 == 0)
    run.schedule = {.schedule = PipelineSchedule::zb_v, .chunks = 2, .cuts = {}};
  const int units = run.layers + (run.family == Family::mlp ? 1 : 2);
  for (int unit = 0; unit < units; ++unit)
    run.unit_activations.push_back(
        {.recompute = draws.among<Recompute>({Recompute::none, Recompute::selective, Recompute::full}),
         .kept = draws.chance(20) ? Space::host : Space::device});
  // These are a block's queries, keys and values, the attention's output, and what goes into the activation
  // function and comes out.
  if (run.family == Family::llama)
    for (int unit = 1; unit <= run.layers; ++unit)
      if (ActivationChoice& choice = run.unit_activations[static_cast<std::size_t>(unit)];
          choice.recompute != Recompute::full)
        choice.again = draws.among<std::vector<int>>({{}, {3}, {4}, {11}, {3, 4, 11}, {0, 12}});
  if (draws.chance(40)) run.offload.states = draws.among<Space>({Space::host, Space::disk});
  if (run.offload.states != Space::device && draws.chance(40)) run.update = UpdateWhen::next;
  run.state_over_replicas = run.stage > 0 && run.replicate > 1 && draws.chance(50);
  return run;
}

TEST(TensorMatrix, RandomMeshesOverAllAxesChangeNoBit) {
  const Seeds seeds(kSanitized ? 4 : 20);
  int over_tensor = 0;
  for (std::uint64_t seed = seeds.from; seed < seeds.from + seeds.count; ++seed) {
    const RunConfig run = drawn_run(seed);
    RunConfig plain = base(run.family, run.dtype);
    plain.steps = run.steps;
    plain.layers = run.layers;
    plain.kv_heads = run.kv_heads;
    plain.microbatches = run.microbatches;
    plain.reduce = run.reduce;
    plain.heads = run.heads;
    plain.tensor_blocks = run.tensor_blocks;
    plain.exchange_chunks = run.exchange_chunks;
    plain.sequence_parallel = run.sequence_parallel;
    plain.tensor = run.tensor_blocks > 1 ? 1 : run.tensor;
    plain.replicate = run.replicate;
    plain.world = run.world;
    plain.strict_order = true;
    plain.prefetch = 0;
    RunResult result = run_training(run);
    const RunResult& expected = known_run(plain);
    EXPECT_TRUE(same_bits(result, expected)) << "seed " << seed << ": " << to_string(run);
    if (run.update == UpdateWhen::decided) {
      EXPECT_EQ(result.fingerprint, expected.fingerprint) << "seed " << seed << ": " << to_string(run);
    }
    over_tensor += run.tensor > 1;
    if (HasFailure()) return;
  }
  EXPECT_GT(over_tensor, static_cast<int>(seeds.count / 3));
}

// Not by the parameters that have them.
TEST(TensorMatrix, WidthsThatRanksCannotShareAreNamedByTheirField) {
  RunConfig llama = base(Family::llama, DType::fp32), mlp = base(Family::mlp, DType::fp32);
  llama.heads = 6, llama.kv_heads = 3, llama.tensor = 2;
  EXPECT_EQ(refusal_of(llama),
            "llama: mesh.tensor is 2, but kv_heads is 3; one of them must be a multiple of the other");
  llama.tensor = 4;
  EXPECT_EQ(refusal_of(llama),
            "llama: mesh.tensor is 4, but heads is 6; the tensor ranks must have equal parts of it");
  mlp.tensor = 12;
  EXPECT_EQ(refusal_of(mlp), "accepted");
  mlp.layers = 1, mlp.tensor = 16;
  EXPECT_EQ(refusal_of(mlp),
            "mlp: mesh.tensor is 16, but sequences of a microbatch is 12; the tensor ranks must have equal "
            "parts of it");
}

TEST(TensorMatrix, ChunksThatCannotBeAreRefused) {
  RunConfig run = base(Family::llama, DType::fp32);
  run.exchange_chunks = 4;
  EXPECT_EQ(refusal_of(run),
            "llama: exchange_chunks is 4, but mesh.tensor is 1 and nothing is exchanged; set it to 1");
  run.tensor = 2;
  EXPECT_EQ(
      refusal_of(run),
      "llama: exchange_chunks is 4, but each of 2 tensor ranks has 6 tokens of a microbatch; chunks must "
      "have equal parts of them");
  run.exchange_chunks = 0;
  EXPECT_EQ(refusal_of(run), "llama: exchange_chunks is 0; it must be 1 or more");
  run.exchange_chunks = 2;
  EXPECT_EQ(refusal_of(run), "accepted");
  run.sequence_parallel = false;
  EXPECT_EQ(refusal_of(run),
            "llama: exchange_chunks is 2 and sequence_parallel is false; chunks are of the rows that it "
            "gives to each "
            "rank");
  run.sequence_parallel = true;
  const auto of_sequences = [&](int sequences) {
    TrainerOptions options = trainer_options(run);
    options.batch = {.sequences = sequences, .length = 12};
    return refusal([&] { plan_trainer(small_model(run), options, 0); });
  };
  EXPECT_EQ(of_sequences(4), "accepted");
  EXPECT_EQ(
      of_sequences(3),
      "llama: exchange_chunks is 2, which cuts 3 sequences of 12 tokens into chunks of 18; a chunk must be "
      "whole sequences, or a whole part of one");
  run.heads = 8, run.tensor_blocks = 4;
  EXPECT_EQ(refusal_of(run),
            "tensor_blocks: exchange_chunks is 2, and it exchanges values whole; set it to 1");
  run = base(Family::mlp, DType::fp32);
  run.tensor = 2, run.exchange_chunks = 2;
  EXPECT_EQ(refusal_of(run), "mlp: exchange_chunks is 2, and it exchanges values whole; set it to 1");
}

// The head works on chunks of rows, which exchange statistics one by one.
TEST(TensorMatrix, AHeadInChunksGivesTheSameLosses) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    RunConfig run = base(Family::llama, dtype);
    run.steps = 6;
    run.tensor = 2;
    const RunResult whole = run_training(run);
    run.logits_bytes = 4 * 31 * 5;  // 3 chunks of 12 rows on a rank
    const RunResult chunks = run_training(run);
    EXPECT_LT(furthest(chunks.losses, whole.losses), 1e-6);
    // In bf16 the weight's gradient is a sum in fp32, whose order the one rounding may hide.
    if (dtype == DType::fp32) {
      EXPECT_NE(chunks.weights, whole.weights) << "there is one chunk only";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, TensorMatrix,
    ::testing::Values(Cell{Family::gpt2, DType::fp32}, Cell{Family::gpt2, DType::bf16},
                      Cell{Family::llama, DType::fp32}, Cell{Family::llama, DType::bf16},
                      Cell{Family::llama, DType::fp32, 2, 1}, Cell{Family::llama, DType::bf16, 2, 1},
                      Cell{Family::llama, DType::fp32, 2, 2}, Cell{Family::mlp, DType::fp32, 4},
                      Cell{Family::mlp, DType::bf16, 4}, Cell{Family::mlp, DType::fp32, 3},
                      Cell{Family::mlp, DType::bf16, 3}, Cell{Family::mlp, DType::fp32, 0}),
    [](const ::testing::TestParamInfo<Cell>& of) {
      return name_of(of.param.family) + "_" + std::string(name_of(of.param.dtype)) +
             (of.param.layers == 2 ? "" : "_layers" + std::to_string(of.param.layers)) +
             (of.param.kv_heads == 0 ? "" : "_kv" + std::to_string(of.param.kv_heads));
    });

}  // namespace
}  // namespace tessera::testing
