// Steps that are captured as one graph have the bits of eager ones, and the host's calls are few.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/capture.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/engine/matrix.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

using emulated_cuda::graph_launches;

RunConfig base() { return {.dtype = DType::bf16, .microbatches = 2, .steps = 4, .device = DeviceType::cuda}; }

// What differs between two runs is how the host issues their steps: of four, two are launches.
void expect_same_bits(RunConfig run) {
  SCOPED_TRACE(to_string(run));
  run.graphs = false;
  const int before = graph_launches();
  const RunResult eager = run_training(run);
  EXPECT_EQ(graph_launches(), before) << "graphs were switched off";
  run.graphs = true;
  EXPECT_TRUE(same_bits(run_training(run), eager));
  EXPECT_EQ(graph_launches() - before, ranks_of(run) * (run.steps - EngineOptions::kEagerSteps));
  EXPECT_EQ(emulated_cuda::graphs(), 0) << "all are given back";
}

TEST(StepGraph, HasTheBitsOfEagerSteps) {
  RunConfig run = base();
  for (const auto& [family, dtype] :
       {std::pair(Family::gpt2, DType::fp32), {Family::llama, DType::bf16}, {Family::mlp, DType::bf16}}) {
    run.family = family;
    run.dtype = dtype;
    run.recompute = dtype == DType::fp32 ? Recompute::full : Recompute::none;
    expect_same_bits(run);
  }
}

TEST(StepGraph, HasThemWhereUpdatesDoNotWaitForTheDecision) {
  RunConfig run = base();
  run.max_norm = 0;
  run.update = UpdateWhen::reduced;
  expect_same_bits(run);
}

TEST(StepGraph, HasThemOverRanks) {
  RunConfig run = base();
  for (const auto& [world, stage, reduction] :
       {std::tuple(2, 0, Reduction::native), {4, 3, Reduction::exact}}) {
    run.world = world;
    run.stage = stage;
    run.reduction = reduction;
    expect_same_bits(run);
  }
  run = base();
  run.world = 2;
  run.stage = 2;
  run.last_round_ranks = 1;
  expect_same_bits(run);
  run = base();
  run.heads = 4;
  run.tensor = 2;
  run.stage = 1;
  expect_same_bits(run);
  run = base();
  run.family = Family::llama;
  run.pipeline = 2;
  run.microbatches = 3;
  expect_same_bits(run);
}

// Rates, keys, scales and samples all change from step to step; and one is skipped.
struct Outcome {
  std::vector<double> losses;
  std::vector<float> weights;
  int skipped = 0;
};
Outcome train(bool graphs) {
  RunConfig run = base();
  run.dtype = DType::fp32;
  run.graphs = graphs;
  Outcome outcome;
  TrainerOptions options = trainer_options(run);
  options.engine.loss_scaling = LossScaleOptions{.initial = 0x1p20, .growth_interval = 2};
  options.evaluation_microbatches = 3;
  const auto model = std::make_shared<const Model>(small_model(run));
  Trainer trainer(make_local_world(1)[0], model, options);
  for (int step = 0; step < 8; ++step) {
    // A weight that is none makes one step of no use, behind the captured one.
    if (step == 5) {
      std::vector<float> bad = {std::numeric_limits<float>::infinity()};
      trainer.engine().write(0, StateKind::master, 0, bad);
    }
    const StepResult done =
        trainer.train_step(1e-3 * (step + 1), fetch_for(run, 0, step, *model, options.batch));
    outcome.losses.push_back(done.loss_scale);
    if (done.applied) outcome.losses.push_back(done.loss);
    outcome.skipped += done.applied ? 0 : 1;
    if (step == 5) {
      std::vector<float> good = {0.5f};
      trainer.engine().write(0, StateKind::master, 0, good);
    }
    const StepResult evaluated = trainer.evaluate(fetch_for(run, 0, 100 + step, *model, options.batch));
    outcome.losses.push_back(evaluated.loss);
  }
  EXPECT_EQ(trainer.engine().captured_operations(0) > 0, graphs);
  EXPECT_EQ(trainer.engine().not_captured(0), graphs ? "" : "graphs are switched off");
  outcome.weights = read_weights(trainer.engine());
  return outcome;
}

TEST(StepGraph, FollowsWhatChangesFromStepToStep) {
  const Outcome eager = train(false), replayed = train(true);
  EXPECT_GE(eager.skipped, 1);
  EXPECT_EQ(replayed.skipped, eager.skipped);
  EXPECT_TRUE(same_bits("losses", replayed.losses, eager.losses));
  EXPECT_TRUE(same_bits("weights", replayed.weights, eager.weights));
}

TEST(StepGraph, IsNotMadeWhereTheHostTakesPart) {
  const auto reason = [](const RunConfig& run) {
    const int before = graph_launches();
    const auto model = std::make_shared<const Model>(small_model(run));
    const TrainerOptions options = trainer_options(run);
    Trainer trainer(make_local_world(1)[0], model, options);
    for (int step = 0; step < 4; ++step)
      EXPECT_TRUE(trainer.train_step(1e-3, fetch_for(run, 0, step, *model, options.batch)).applied);
    EXPECT_EQ(graph_launches(), before);
    return trainer.engine().not_captured(0);
  };
  RunConfig run = base();
  run.offload.states = Space::host;
  EXPECT_EQ(reason(run), "some of its work is done on the host");
  run = base();
  run.poison = true;
  EXPECT_EQ(reason(run), "dead memory is poisoned");
  run.poison = false;
  run.guards = true;
  EXPECT_EQ(reason(run), "guards are compared behind each instruction");
  run.guards = false;
  run.device = DeviceType::cpu;
  EXPECT_EQ(reason(run), "its work is done on the CPU");
}

TEST(StepGraph, IsUsedOnlyWhereItIsOffered) {
  const RunConfig run = base();
  const auto model = std::make_shared<const Model>(small_model(run));
  const auto failure = [&](const std::function<void(Engine&)>& call) {
    Trainer trainer(make_local_world(1)[0], model, trainer_options(run));
    for (int step = 0; step < EngineOptions::kEagerSteps; ++step)
      EXPECT_TRUE(
          trainer.train_step(1e-3, fetch_for(run, 0, step, *model, trainer_options(run).batch)).applied);
    return refusal<Error>([&] { call(trainer.engine()); });
  };
  EXPECT_NE(failure([](Engine& engine) {
              engine.begin_program(0, {.captured = true});
            }).find("terms.captured is true; it may be where next_step() said StepMode::captured"),
            std::string::npos);
  EXPECT_NE(failure([](Engine& engine) {
              EXPECT_EQ(engine.replay(0, {}, {}, [](int, std::span<std::byte>) {}).step, 0);
            }).find("next_step() did not say StepMode::replayed"),
            std::string::npos);
  EXPECT_NE(
      failure([](Engine& engine) { engine.next_step(99); }).find("next_step: program 99 does not exist"),
      std::string::npos);
  const std::string waited = failure([](Engine& engine) {
    ASSERT_EQ(engine.next_step(0), StepMode::captured);
    engine.begin_program(0, {.captured = true});
    const UnitLease lease = engine.use(0, Pass::forward);
    float value = 0;
    engine.transfer(&value, lease.parameter(0).data, sizeof value);
  });
  EXPECT_NE(waited.find("is being captured; nothing is done that the host could wait for"), std::string::npos)
      << waited;
}

// The next step is captured anew, and not like one that was given up.
TEST(StepGraph, AnAbandonedStepLeavesNone) {
  const RunConfig run = base();
  const auto model = std::make_shared<const Model>(small_model(run));
  const BatchShape shape = trainer_options(run).batch;
  const auto train = [&](bool graphs) {
    TrainerOptions options = trainer_options(run);
    options.engine.graphs = graphs;
    Trainer trainer(make_local_world(1)[0], model, options);
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      if (step == EngineOptions::kEagerSteps) {
        const StepMode mode = trainer.engine().next_step(0);
        EXPECT_EQ(mode, graphs ? StepMode::captured : StepMode::eager);
        trainer.engine().begin_program(0, {.captured = mode == StepMode::captured});
        EXPECT_EQ(trainer.engine().abandon().reason, SkipReason::abandoned);
        EXPECT_EQ(trainer.engine().captured_operations(0), 0u);
      }
      losses.push_back(trainer.train_step(1e-3, fetch_for(run, 0, step, *model, shape)).loss);
    }
    return losses;
  };
  EXPECT_EQ(train(true), train(false));
}

// What the host asks the runtime for in a replayed step, but for asking again whether it is done, and which
// GPU is current, which the driver is not needed for.
TEST(StepGraph, IsOneLaunchAndFewOtherCalls) {
  for (const int world : {1, 2}) {
    RunConfig run = base();
    run.world = world;
    run.stage = 3;
    const auto model = std::make_shared<const Model>(small_model(run));
    std::map<std::string, int> eager, replayed;
    run_local(world, {}, [&](Communicator host) {
      TrainerOptions options = trainer_options(run);
      Trainer trainer(placed(host, options), model, options);
      for (int step = 0; step < 5; ++step) {
        host.barrier();
        if (host.rank() == 0) emulated_cuda::forget_calls();
        host.barrier();
        EXPECT_TRUE(
            trainer.train_step(1e-3, fetch_for(run, host.rank(), step, *model, options.batch)).applied);
        host.barrier();
        if (host.rank() == 0 && step == 1) eager = emulated_cuda::calls_made();
        if (host.rank() == 0 && step == 4) replayed = emulated_cuda::calls_made();
      }
    });
    const auto count = [&](const std::map<std::string, int>& calls) {
      int all = 0;
      for (const auto& [name, times] : calls)
        if (name != "cudaGetDevice" && name != "cudaGetLastError" && name != "cudaEventQuery") all += times;
      return all / world;
    };
    EXPECT_EQ(replayed["cudaGraphLaunch"], world);
    EXPECT_LE(count(replayed), 11) << ::testing::PrintToString(replayed);
    EXPECT_GT(count(eager), 300);
    std::printf("%d ranks: %d calls a rank in an eager step, %d in a replayed one\n", world, count(eager),
                count(replayed));
  }
}

// Who wants to look at a step has it run eagerly on all ranks; the graph stays.
TEST(StepGraph, WaitsWhileAnyRankTraces) {
  RunConfig run = base();
  run.world = 2;
  run.stage = 3;
  const auto model = std::make_shared<const Model>(small_model(run));
  std::atomic<int> launched{0};
  run_local(2, {}, [&](Communicator host) {
    TrainerOptions options = trainer_options(run);
    Trainer trainer(placed(host, options), model, options);
    for (int step = 0; step < 7; ++step) {
      host.barrier();
      const int before = graph_launches();
      trainer.engine().set_tracing(host.rank() == 1 && (step == 4 || step == 5));
      host.barrier();
      EXPECT_TRUE(trainer.train_step(1e-3, fetch_for(run, host.rank(), step, *model, options.batch)).applied);
      host.barrier();
      const bool eager = step < EngineOptions::kEagerSteps || step == 4 || step == 5;
      EXPECT_EQ(graph_launches() - before, eager ? 0 : 2) << step;
      EXPECT_EQ(trainer.engine().trace().empty(), !(host.rank() == 1 && (step == 4 || step == 5)));
    }
  });
}

// The step's work was not done, so it is done eagerly, and all that follow.
TEST(StepGraph, WhatADriverRefusesIsDoneEagerlyOnAllRanks) {
  RunConfig run = base();
  run.world = 2;
  run.stage = 2;
  run.graphs = false;
  const RunResult eager = run_training(run);
  run.graphs = true;
  emulated_cuda::refuse_graphs(1);  // of the second rank's GPU
  const int before = graph_launches();
  EXPECT_TRUE(same_bits(run_training(run), eager));
  EXPECT_EQ(graph_launches(), before);
  emulated_cuda::refuse_graphs(-1);
}

// A peer that does not come to a captured collective is reported with the call that waits for it.
TEST(StepGraph, AMissingPeerIsNamedWithinTheDeadline) {
  RunConfig run = base();
  run.world = 2;
  run.stage = 3;
  const auto model = std::make_shared<const Model>(small_model(run));
  IdVector<std::string> messages;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_ANY_THROW(run_local(
      2, {},
      [&](Communicator host) {
        TrainerOptions options = trainer_options(run);
        options.engine.waits.deadline = std::chrono::milliseconds(1500);
        Trainer trainer(placed(host, options), model, options);
        for (int step = 0; step < 5; ++step) {
          if (step == 4 && host.rank() == 1)
            emulated_cuda::hold(static_cast<cudaStream_t>(trainer.engine().stream()));
          trainer.train_step(1e-3, fetch_for(run, host.rank(), step, *model, options.batch));
        }
      },
      &messages));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_NE((messages[0] + messages[1]).find("the GPUs have not completed it within 1.5 s"),
            std::string::npos)
      << messages[0] << "\n"
      << messages[1];
  EXPECT_NE((messages[0] + messages[1]).find(" of unit '"), std::string::npos) << messages[0];
}

}  // namespace
}  // namespace tessera::testing
