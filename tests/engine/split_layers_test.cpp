// A trainer that splits its own layers over tensor ranks, by the collectives of a lease: it trains as on one
// rank, and no strategy changes a bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "tessera/checkpoint.h"
#include "tessera/program.h"
#include "tests/engine/failing.h"
#include "tests/engine/split_mlp.h"
#include "tests/refusal.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

MlpResult run_mlp(const MlpRun& run) {
  MlpResult result;
  run_local(run.mesh.world(), kBlocking, [&](Communicator world) {
    MlpResult own = train_mlp(world, run);
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

TEST(SplitLayers, EveryMeshAndStageHasTheBitsOfItsTensorWidth) {
  const MlpResult alone = run_mlp({});
  EXPECT_LT(alone.losses.back(), alone.losses.front()) << "the run does not learn";
  for (const int tensor : {1, 2, 4}) {
    std::optional<MlpResult> of_width;
    for (const int shard : {1, 2})
      for (const int stage : {0, 1, 2, 3}) {
        const MlpRun run{.mesh = {.shard = shard, .tensor = tensor}, .stage = stage};
        SCOPED_TRACE(to_string(run));
        const MlpResult result = run_mlp(run);
        expect_near(result, alone);
        if (!of_width) of_width = result;
        expect_same_bits(result, *of_width);
      }
  }
}

TEST(SplitLayers, NoStrategyChangesABit) {
  const MlpResult expected = run_mlp({.mesh = {.tensor = 2}});
  const Mesh split{.shard = 2, .tensor = 2}, piped{.pipeline = 3, .tensor = 2},
      all{.pipeline = 2, .shard = 2, .tensor = 2};
  Pipeline gpipe, zero_bubble;
  gpipe.schedule = PipelineSchedule::gpipe;
  zero_bubble.schedule = PipelineSchedule::zb_h1;
  for (const MlpRun& run : std::vector<MlpRun>{
           {.mesh = split, .stage = 3, .recompute = Recompute::full},
           {.mesh = split, .stage = 3, .strict_order = true},
           {.mesh = split, .stage = 2, .offload = {.states = Space::host, .activations = Space::host}},
           {.mesh = piped, .stage = 1},
           {.mesh = piped, .recompute = Recompute::full, .strict_order = true},
           {.mesh = all, .stage = 3},
           {.mesh = all, .stage = 3, .pipeline = gpipe},
           {.mesh = piped, .splits_backward = true},
           {.mesh = piped, .stage = 1, .pipeline = zero_bubble, .splits_backward = true},
           {.mesh = all,
           .stage = 3,
           .pipeline = zero_bubble,
           .splits_backward = true,
           .recompute = Recompute::full}}) {
    SCOPED_TRACE(to_string(run));
    expect_same_bits(run_mlp(run), expected);
  }
}

// Weight gradients run as uses of their own, and only there; backward then has none.
TEST(SplitLayers, ASplitBackwardHasUsesOfItsOwn) {
  MlpRun run{.mesh = {.pipeline = 3}, .splits_backward = true};
  run.pipeline.schedule = PipelineSchedule::zb_h1;
  run_local(3, kBlocking, [&](Communicator world) {
    Engine engine(world, mlp_units(), mlp_options(run));
    engine.initialize(mlp_fill);
    begin_mlp(engine);
    int apart = 0;
    for (const Instruction& use : engine.running().instructions) {
      if (use.op != Opcode::use) continue;
      const bool last = use.unit == kMlpUnits - 1;
      UnitLease lease = engine.use(use.unit, use.pass);
      apart += use.pass == Pass::weight_gradient;
      EXPECT_EQ(lease.writes_gradients(), use.pass == (last ? Pass::backward : Pass::weight_gradient));
      if (use.pass == Pass::backward && !last) {
        expect_words(refusal([&] { lease.gradient(use.unit * kMlpParameters); }),
                     {"part 'backward' of unit", "does not write the gradient of"});
      }
      if (use.pass == Pass::weight_gradient) {
        expect_words(refusal([&] { lease.parameter(use.unit * kMlpParameters); }),
                     {"parameters are not gathered for weight gradients"});
      }
      lease.end();
    }
    EXPECT_EQ(apart, world.rank() == 2 ? 0 : kMlpMicrobatches);
    engine.abandon();
  });
}

TEST(SplitLayers, AScheduleThatSplitsNeedsAUnitThatCan) {
  MlpRun run{.mesh = {.pipeline = 3}};
  run.pipeline.schedule = PipelineSchedule::zb_h1;
  run_local(3, kBlocking, [&](Communicator world) {
    expect_words(refusal([&] { Engine(world, mlp_units(), mlp_options(run)); }),
                 {"pipeline.schedule zb_h1", "splits_backward"});
  });
}

// An element that is not exchanged is found in the weights, whichever call it belongs to.
TEST(SplitLayers, EveryExchangedElementCounts) {
  for (const int tensor : {2, 4}) {
    const MlpResult expected = run_mlp({.mesh = {.tensor = tensor}});
    for (const Dropped dropped :
         {Dropped::forward_sum, Dropped::backward_sum, Dropped::reduce_scatter, Dropped::all_gather}) {
      const MlpResult spoiled = run_mlp({.mesh = {.tensor = tensor}, .dropped = dropped});
      EXPECT_GT(furthest(spoiled.states, expected.states), 100 * kMlpTolerance) << static_cast<int>(dropped);
    }
  }
}

// The norm is that of the gradients as they are read, each element once; clipping acts on it.
TEST(SplitLayers, NormsAndClippingCountEachElementOnce) {
  for (const Mesh& mesh : {Mesh{}, Mesh{.tensor = 2}, Mesh{.tensor = 4}, Mesh{.shard = 2, .tensor = 2}}) {
    SCOPED_TRACE(to_string(mesh));
    run_local(mesh.world(), kBlocking, [&](Communicator world) {
      Engine engine(world, mlp_units(), mlp_options({.mesh = mesh, .stage = 2}));
      engine.initialize(mlp_fill);
      MlpTrainer trainer(engine);
      trainer.uses();
      std::vector<double> norms;
      for (ParameterId id = 0; id < engine.layout().parameters(); ++id) {
        Matrix gradient(static_cast<std::size_t>(numel_of(engine.layout().parameter(id).shape)));
        engine.read_gradient(id, 0, gradient);
        norms.push_back(
            std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0)));
      }
      const StepResult result = engine.step({.learning_rate = kMlpLearningRate, .weight = 0.0});
      const double all = std::sqrt(std::inner_product(norms.begin(), norms.end(), norms.begin(), 0.0));
      EXPECT_EQ(result.weight, kMlpMicrobatches * kMlpRows);
      EXPECT_NEAR(result.gradient_norm * result.weight, all, 1e-6 * all);
      for (std::size_t id = 0; id < norms.size(); ++id)
        EXPECT_NEAR(result.parameter_norms[id] * result.weight, norms[id], 1e-6 * norms[id]) << id;
    });
  }
  const MlpResult free = run_mlp({});
  const double most = free.norms[0] / 3;
  const MlpResult clipped = run_mlp({.clip = most});
  EXPECT_GT(furthest(clipped.states, free.states), 100 * kMlpTolerance) << "clipping does not bite";
  for (const int tensor : {2, 4})
    for (const int shard : {1, 2}) {
      const MlpResult result =
          run_mlp({.mesh = {.shard = shard, .tensor = tensor}, .stage = 3, .clip = most});
      expect_near(result, clipped);
    }
}

// Saved on one tensor width and continued on another: the same states to the bit, then the same run but for
// rounding.
TEST(SplitLayers, ACheckpointContinuesOnAnotherTensorWidth) {
  const MlpResult whole = run_mlp({.steps = 4});
  for (const int from : {1, 2, 4})
    for (const int to : {4, 2, 1}) {
      SCOPED_TRACE("from " + std::to_string(from) + " to " + std::to_string(to));
      const TemporaryFolder folder;
      std::vector<float> saved, loaded, end;
      run_local(from, kBlocking, [&](Communicator world) {
        Engine engine(world, mlp_units(), mlp_options({.mesh = {.tensor = from}, .stage = 1}));
        engine.initialize(mlp_fill);
        MlpTrainer trainer(engine);
        for (int step = 0; step < 2; ++step) trainer.train_step();
        save_checkpoint(folder.file("run"), world, engine, {.step = 2});
        const std::vector<float> states = mlp_states(engine);
        if (world.rank() == 0) saved = states;
      });
      run_local(2 * to, kBlocking, [&](Communicator world) {
        Engine engine(world, mlp_units(), mlp_options({.mesh = {.shard = 2, .tensor = to}, .stage = 3}));
        load_checkpoint(folder.file("run"), world, engine);
        const std::vector<float> before = mlp_states(engine);
        MlpTrainer trainer(engine);
        for (int step = 2; step < 4; ++step) trainer.train_step();
        const std::vector<float> after = mlp_states(engine);
        if (world.rank() == 0) loaded = before, end = after;
      });
      EXPECT_EQ(loaded, saved);
      EXPECT_GT(furthest(end, saved), 100 * kMlpTolerance);
      EXPECT_LT(furthest(end, whole.states), kMlpTolerance);
    }
}

// Units without a copy whose gradient is partial, and a trainer that says what it computes: only the width
// tells their bits apart.
TEST(SplitLayers, TheFingerprintKnowsTheTensorWidth) {
  const auto fingerprint = [](int tensor, int shard, int stage) {
    std::string text;
    run_local(tensor * shard, kBlocking, [&](Communicator world) {
      EngineOptions options = mlp_options({.mesh = {.shard = shard, .tensor = tensor}, .stage = stage});
      options.compute = {{.what = "the layers", .value = "mlp"}};
      std::vector<UnitSpec> units = mlp_units();
      for (UnitSpec& unit : units)
        for (ParameterSpec& parameter : unit.parameters) parameter.gradient = GradientOver::copied;
      Engine engine(world, units, options);
      if (world.rank() == 0) text = fingerprint_of(engine.numerics());
    });
    return text;
  };
  const std::string of_two = fingerprint(2, 1, 0);
  EXPECT_EQ(fingerprint(2, 2, 3), of_two);
  EXPECT_NE(fingerprint(4, 1, 0), of_two);
  EXPECT_NE(fingerprint(1, 1, 0), of_two);
}

// Bytes along the axis, counted by hand: what units exchange, and gradients of copies that are sums.
TEST(SplitLayers, BytesAreCounted) {
  const MlpRun run{.mesh = {.tensor = 2}};
  run_local(2, kBlocking, [&](Communicator world) {
    Engine engine(world, mlp_units(), mlp_options(run));
    engine.initialize(mlp_fill);
    const std::int64_t before = engine.bytes_received(Axis::tensor);
    MlpTrainer(engine).train_step();
    const std::int64_t whole = 4 * kMlpNumel;           // half of it to be added, half of the sum
    std::int64_t bytes = kMlpMicrobatches * 5 * whole;  // three units forward, two backward
    for (const Flat& flat : engine.layout().flats())
      if (flat.over == TensorShare::partial) bytes += 2 * flat.piece_numel * 4;
    EXPECT_EQ(engine.bytes_received(Axis::tensor) - before, bytes);
  });
}

// ---- what one rank makes of the calls ----

TEST(TensorGroup, OneRankCopies) {
  Engine engine(make_local_world(1)[0], mlp_units(), mlp_options({}));
  engine.initialize(mlp_fill);
  begin_mlp(engine);
  UnitLease lease = engine.use(0, Pass::forward);
  TensorGroup ranks = lease.tensor();
  EXPECT_EQ(ranks.ranks(), 1);
  EXPECT_EQ(ranks.rank(), 0);
  std::vector<float> from = {1.5f, -2.25f, 3.0f}, to(3), half(3);
  ranks.all_gather(from.data(), to.data(), 12);
  EXPECT_EQ(to, from);
  to.assign(3, 0.0f);
  ranks.reduce_scatter(from.data(), DType::fp32, to.data(), 3);
  EXPECT_EQ(to, from);
  const std::uint16_t bf16[] = {0x3FC0, 0xC010, 0x4040};
  ranks.reduce_scatter(bf16, DType::bf16, half.data(), 3);
  EXPECT_EQ(half, from);
  ranks.all_reduce(to.data(), 3);
  EXPECT_EQ(to, from);
  ranks.all_gather(to.data(), to.data(), 12);
  ranks.reduce_scatter(to.data(), DType::fp32, to.data(), 3);
  EXPECT_EQ(to, from) << "in place";
  lease.end();
}

// Any memory, in rank order: 2^25 takes 1 only behind the others.
TEST(TensorGroup, SumsInTheOrderOfRanks) {
  run_local(4, kBlocking, [&](Communicator world) {
    Engine engine(world, mlp_units(), mlp_options({.mesh = {.tensor = 4}}));
    engine.initialize(mlp_fill);
    begin_mlp(engine);
    UnitLease lease = engine.use(0, Pass::forward);
    TensorGroup ranks = lease.tensor();
    const float own[] = {1.0f, 1.0f, 0x1p25f, -0x1p25f};
    const float sum = ((own[0] + own[1]) + own[2]) + own[3];
    std::vector<float> all(37, own[ranks.rank()]), whole(20, own[ranks.rank()]), part(5);
    ranks.all_reduce(all.data(), 37);
    EXPECT_THAT(all, ::testing::Each(sum));
    ranks.reduce_scatter(whole.data(), DType::fp32, part.data(), 5);
    EXPECT_THAT(part, ::testing::Each(sum));
    part.assign(5, static_cast<float>(ranks.rank()));
    ranks.all_gather(part.data(), whole.data(), 20);
    for (int k = 0; k < 20; ++k) EXPECT_EQ(whole[static_cast<std::size_t>(k)], k / 5);
    lease.end();
    engine.abandon();
  });
}

// ---- mistakes and faults ----

std::vector<Fate> run_failing_mlp(const Mesh& mesh, const std::function<void(Engine&, int)>& body) {
  return run_failing(mlp_options({.mesh = mesh}), mlp_units(), body);
}

void expect_usage(const Fate& fate, const std::vector<std::string>& words) {
  EXPECT_EQ(fate.kind, Fate::Kind::usage) << fate.message;
  expect_words(fate.message, words);
}

TEST(TensorGroup, IsOfALeaseThatIsOpen) {
  for (const int tensor : {1, 2}) {
    const auto fates = run_failing_mlp({.tensor = tensor}, [](Engine& engine, int) {
      begin_mlp(engine);
      UnitLease lease = engine.use(0, Pass::forward);
      TensorGroup ranks = lease.tensor();
      float value = 0;
      ranks.all_reduce(&value, 1);
      lease.end();
      expect_words(refusal([&] { lease.tensor(); }), {"the lease has ended"});
      ranks.all_reduce(&value, 1);
    });
    for (const Fate& fate : fates)
      expect_usage(fate, {"all_reduce", "the lease that gave this tensor group has ended"});
  }
}

TEST(TensorGroup, OfAnEarlierStepIsNotThatOfThisOne) {
  Engine engine(make_local_world(1)[0], mlp_units(), mlp_options({}));
  engine.initialize(mlp_fill);
  std::optional<TensorGroup> kept;
  for (const int step : {0, 1}) {
    begin_mlp(engine);
    UnitLease lease = engine.use(0, Pass::forward);
    if (step == 0) {
      kept = lease.tensor();
    } else {
      float value = 0;
      expect_words(refusal([&] { kept->all_gather(&value, &value, 4); }), {"all_gather", "has ended"});
      expect_words(refusal([&] { lease.end(); }), {"has failed before"});
      return;
    }
    lease.end();
    engine.abandon();
  }
}

TEST(TensorGroup, OutlivesItsEngineWithoutHarm) {
  std::optional<Engine> engine(std::in_place, make_local_world(1)[0], mlp_units(), mlp_options({}));
  engine->initialize(mlp_fill);
  begin_mlp(*engine);
  UnitLease lease = engine->use(0, Pass::forward);
  TensorGroup ranks = lease.tensor();
  engine.reset();
  expect_words(refusal([&] { ranks.all_reduce(nullptr, 0); }), {"engine was destroyed"});
  expect_words(refusal([&] { ranks.rank(); }), {"engine was destroyed"});
}

TEST(TensorGroup, ArgumentsThatMeanNothingAreRefusedByValue) {
  struct Case {
    std::function<void(TensorGroup&, float*)> call;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {[](TensorGroup& ranks, float*) { ranks.all_reduce(nullptr, 3); },
       {"all_reduce of 3 elements at a null pointer"}},
      {[](TensorGroup& ranks, float* here) { ranks.all_reduce(here, -1); },
       {"all_reduce of -1 elements", "0 or more"}},
      {[](TensorGroup& ranks, float* here) { ranks.all_gather(nullptr, here, 4); },
       {"all_gather of 4 bytes at a null pointer"}},
      {[](TensorGroup& ranks, float* here) { ranks.all_gather(here + 1, here, 12); },
       {"all_gather", "overlaps"}},
      {[](TensorGroup& ranks, float* here) { ranks.reduce_scatter(here, DType{7}, here + 8, 2); },
       {"type has the value 7"}},
      {[](TensorGroup& ranks, float* here) { ranks.reduce_scatter(here, DType::fp32, here + 1, 2); },
       {"reduce_scatter", "overlaps"}}};
  for (const int tensor : {1, 2})
    for (const Case& of : cases) {
      const auto fates = run_failing_mlp({.tensor = tensor}, [&](Engine& engine, int) {
        begin_mlp(engine);
        UnitLease lease = engine.use(0, Pass::forward);
        TensorGroup ranks = lease.tensor();
        std::vector<float> memory(16);
        of.call(ranks, memory.data());
      });
      for (const Fate& fate : fates) expect_usage(fate, of.words);
    }
}

TEST(TensorGroup, NeedsItsOption) {
  for (const int tensor : {1, 2}) {
    EngineOptions options = mlp_options({.mesh = {.tensor = tensor}});
    options.splits_layers = false;
    const auto fates = run_failing(options, mlp_units(), [](Engine& engine, int) {
      begin_mlp(engine);
      UnitLease lease = engine.use(0, Pass::forward);
      lease.tensor();
    });
    for (const Fate& fate : fates) expect_usage(fate, {"splits_layers is false"});
  }
}

TEST(TensorGroup, RanksWithUnequalOptionsAreTold) {
  const IdVector<Fate> fates = [] {
    IdVector<Fate> of(2);
    run_local(2, kBlocking, [&](Communicator world) {
      EngineOptions options = mlp_options({.mesh = {.tensor = 2}});
      options.splits_layers = world.rank() == 0;
      of[world.rank()] = fate_of([&] { Engine(world, mlp_units(), options); });
    });
    return of;
  }();
  for (const Fate& fate : fates) expect_usage(fate, {"rank 1", "splits_layers"});
}

// In the first backward of unit 1 each rank runs `body`, and then makes the call that the others make unless
// it returns false.
IdVector<Fate> fates_in_a_lease(const std::function<bool(int rank, TensorGroup& ranks)>& body) {
  return run_failing_mlp({.shard = 2, .tensor = 2}, [&](Engine& engine, int rank) {
    begin_mlp(engine);
    for (const Instruction& use : engine.running().instructions) {
      if (use.op != Opcode::use) continue;
      UnitLease lease = engine.use(use.unit, use.pass);
      TensorGroup ranks = lease.tensor();
      std::vector<float> memory(64);
      const bool here = use.unit == 1 && use.pass == Pass::backward;
      if (!here || body(rank, ranks)) ranks.all_reduce(memory.data(), 64);
      lease.end();
    }
    (void)engine.step({.learning_rate = 0.1});
  });
}

TEST(TensorGroupFaults, ARankThatThrowsEndsTheOthersAtOnce) {
  const IdVector<Fate> fates = fates_in_a_lease([](int rank, TensorGroup&) {
    if (rank == 1) throw std::runtime_error("the disk is on fire");
    return true;
  });
  EXPECT_EQ(fates[1].message, "the disk is on fire");
  for (const int rank : {0, 2, 3}) expect_blames(fates[rank], 1);
}

// Rank 2 waits for rank 0, then rank 0 for rank 1. The first deadline is that of rank 2, which does not blame
// a rank that waits.
TEST(TensorGroupFaults, ARankThatStallsIsNamedWithinTheDeadline) {
  const IdVector<Fate> fates = fates_in_a_lease([](int rank, TensorGroup& ranks) {
    std::vector<float> memory(64);
    if (rank == 3) ranks.all_reduce(memory.data(), 64);  // so that rank 2 goes on
    if (rank == 0 || rank == 3) std::this_thread::sleep_for(kGrace / 2);
    if (rank == 1) std::this_thread::sleep_for(kDeadline + 2 * kGrace);
    return rank != 3;
  });
  for (const int rank : {0, 2, 3}) {
    const Fate& fate = fates[rank];
    EXPECT_EQ(fate.kind, Fate::Kind::communication) << fate.message;
    EXPECT_EQ(fate.culprit, 1) << fate.message;
    expect_words(fate.message,
                 {"no answer from rank 0 within 2.0 s, which waits for peers itself", "; rank 1 "});
    EXPECT_LT(fate.after, kDeadline + kGrace) << fate.message;
  }
}

// As soon as nobody waits elsewhere, the call itself is named.
TEST(TensorGroupFaults, TheCallIsNamed) {
  const auto fates = run_failing_mlp({.tensor = 2}, [](Engine& engine, int rank) {
    begin_mlp(engine);
    UnitLease lease = engine.use(0, Pass::forward);
    float value = 0;
    if (rank == 1) std::this_thread::sleep_for(kDeadline + kGrace / 2);
    lease.tensor().all_reduce(&value, 1);
  });
  EXPECT_EQ(fates[0].culprit, 1);
  expect_words(fates[0].message,
               {"all_reduce #1 of unit 'mlp.0' on 'lease'", "no answer from rank 1 within 2.0 s"});
}

TEST(TensorGroupFaults, ARankThatCallsAnotherCollectiveIsNamed) {
  const IdVector<Fate> fates = fates_in_a_lease([](int rank, TensorGroup& ranks) {
    std::vector<float> memory(64);
    if (rank == 1) ranks.all_gather(memory.data() + 32, memory.data(), 128);
    return true;
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(fates[rank].kind, Fate::Kind::communication) << fates[rank].message;
    expect_words(fates[rank].message,
                 {"all_reduce #", "all_gather #", "of unit 'mlp.1'", "64 elements", "128 bytes"});
  }
}

// Its next call meets the one that it left out.
TEST(TensorGroupFaults, ARankThatLeavesACallOutIsNamed) {
  const IdVector<Fate> fates = fates_in_a_lease([](int rank, TensorGroup&) { return rank != 1; });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(fates[rank].kind, Fate::Kind::communication) << fates[rank].message;
    expect_words(fates[rank].message, {"all_reduce #", "of unit 'mlp.1'", "of unit 'mlp.0'"});
  }
}

TEST(TensorGroupFaults, ARankThatSumsAnotherNumberIsNamed) {
  const IdVector<Fate> fates = fates_in_a_lease([](int rank, TensorGroup& ranks) {
    std::vector<float> memory(63);
    if (rank == 1) ranks.all_reduce(memory.data(), 63);
    return true;
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(fates[rank].kind, Fate::Kind::communication) << fates[rank].message;
    expect_words(fates[rank].message, {"63 elements", "64 elements", "mlp.1"});
  }
}

}  // namespace
}  // namespace tessera::testing
