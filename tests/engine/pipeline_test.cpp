// Pipeline ranks driven through the engine's verbs: what is sent arrives, tied gradients add up, time and
// bytes are what theory says, and a neighbour that fails is named.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "tessera/device.h"
#include "tessera/memory_plan.h"
#include "tessera/pipeline.h"
#include "tessera/program.h"
#include "tests/engine/failing.h"
#include "tests/engine/pipeline_toy.h"
#include "tests/program/whole_backwards.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

StepResult pipeline_step(Engine& engine, const ToyStep& step) {
  const Mesh& mesh = engine.options().mesh;
  const int data_rank = mesh.data_rank(engine.rank());
  const bool last = mesh.coordinates(engine.rank())[0] == mesh.pipeline - 1;
  engine.begin(StepKind::train, step.microbatches);
  pipeline_uses(engine, step, data_rank, [](const Instruction&) {});
  return engine.step({.learning_rate = step.learning_rate,
                      .weight = last ? toy_weight(data_rank) : 0.0,
                      .loss = last ? toy_loss(data_rank, step.step) : 0.0});
}

struct Trained {
  std::vector<float> states;
  std::vector<double> norms, losses;
  bool operator==(const Trained&) const = default;
};

Trained train(EngineOptions options, DType type) {
  Trained trained;
  run_local(options.mesh.world(), kBlocking, [&](Communicator world) {
    Engine engine(world, toy_units(type), options);
    engine.initialize(toy_fill());
    Trained mine;
    for (int step = 0; step < 3; ++step) {
      const StepResult result =
          pipeline_step(engine, {.step = step, .microbatches = options.programs[0].microbatches});
      EXPECT_TRUE(result.applied);
      mine.norms.push_back(result.gradient_norm);
      mine.losses.push_back(result.loss);
    }
    mine.states = read_everything(engine);
    if (world.rank() == 0) trained = std::move(mine);
  });
  return trained;
}

// The toy's gradients are exact in any order, so that even its tied parameter, on both ends of the chain, is
// equal.
TEST(PipelineVerbs, EveryMeshTrainsToTheStatesOfOneWithoutPipeline) {
  const int units = static_cast<int>(toy_units(DType::bf16).size());
  for (const DType type : {DType::fp32, DType::bf16})
    for (int stage = 0; stage <= 3; ++stage)
      for (const auto& [replicate, shard] : {std::pair{1, 1}, {1, 2}, {2, 1}}) {
        const auto options = [&](int pipeline) {
          EngineOptions made =
              pipeline_options({.pipeline = pipeline, .replicate = replicate, .shard = shard}, units, 3);
          made.strategy.placements = Placements::of_stage(stage);
          made.debug.poison = true;
          return made;
        };
        const Trained expected = train(options(1), type);
        for (int pipeline : {2, 3, 5}) {
          EngineOptions piped = options(pipeline);
          piped.strategy.state_over_replicas = replicate > 1 && stage > 0;
          piped.strategy.parameters_over_replicas = replicate > 1 && stage == 3;
          EXPECT_TRUE(train(piped, type) == expected) << name_of(type) << " stage " << stage << " pipeline "
                                                      << pipeline << " × " << replicate << " × " << shard;
        }
        if (shard * replicate > 1) continue;
        EngineOptions looped = options(2);
        looped.strategy.pipeline = {
            .schedule = PipelineSchedule::interleaved, .chunks = 2, .cuts = {1, 2, 4}};
        EXPECT_TRUE(train(looped, type) == expected) << name_of(type) << " stage " << stage << " interleaved";
      }
}

// A recompute that ran all of a forward again would write its output where another microbatch's lies by then.
TEST(PipelineVerbs, AUseIsGivenWhatItReadsAndWritesOnly) {
  for (const int pipeline : {1, 2, 4}) {
    EngineOptions options = pipeline_options({.pipeline = pipeline}, 4, 4);
    options.strategy.recompute = Recompute::full;
    run_local(pipeline, kBlocking, [&](Communicator world) {
      Engine engine(world, chain(4), options);
      engine.initialize(toy_fill());
      engine.begin(StepKind::train, 4);
      for (const Instruction& use : engine.running().instructions) {
        if (use.op != Opcode::use) continue;
        UnitLease lease = engine.use(use.unit, use.pass);
        const bool forward = use.pass == Pass::forward, backward = use.pass == Pass::backward;
        const auto given = [&](Role role) { return lease.address(role) != nullptr; };
        EXPECT_EQ(given(Role::input), use.unit > 0) << name_of(use.pass);
        EXPECT_EQ(given(Role::output), forward) << name_of(use.pass);
        EXPECT_EQ(given(Role::output_gradient), backward && use.unit < 3) << name_of(use.pass);
        EXPECT_EQ(given(Role::input_gradient), backward && use.unit > 0) << name_of(use.pass);
        if (backward) write_gradients(engine, lease, {});
        lease.end();
      }
      (void)engine.step({.learning_rate = 0.1});
    });
  }
}

// A rank's first parameter that is not finite is found on whichever pipeline rank it is.
TEST(PipelineVerbs, NameTheFirstGradientThatIsNotFinite) {
  EngineOptions options = pipeline_options({.pipeline = 2, .replicate = 2}, 5, 1);
  run_local(4, kBlocking, [&](Communicator world) {
    Engine engine(world, toy_units(DType::fp32), options);
    engine.initialize(toy_fill());
    const StepResult result = pipeline_step(engine, {.gradient = [](const GradientAt& at) {
                                              return at.parameter == 6 && at.index == 217
                                                         ? std::numeric_limits<float>::infinity()
                                                         : toy_gradient(at);
                                            }});
    EXPECT_FALSE(result.applied);
    EXPECT_EQ(result.reason, SkipReason::not_finite);
    EXPECT_EQ(result.first_nonfinite, "block.1.weight");
  });
}

// ---- bytes ----

struct Traffic {
  std::int64_t pipeline = 0, replicate = 0, shard = 0;
};

// What each rank received in one step.
std::vector<Traffic> traffic_of(const EngineOptions& options, const std::vector<UnitSpec>& units) {
  IdVector<Traffic> traffic(options.mesh.world());
  run_local(options.mesh.world(), kBlocking, [&](Communicator world) {
    Engine engine(world, units, options);
    engine.initialize(toy_fill());
    pipeline_step(engine, {.microbatches = options.programs[0].microbatches});
    traffic[world.rank()] = {engine.bytes_received(Axis::pipeline), engine.bytes_received(Axis::replicate),
                             engine.bytes_received(Axis::shard)};
  });
  return traffic;
}

// fp32 parameters without padding: Ψ elements on a pipeline rank, N shards, R replicas, A microbatches, f =
// (N − 1)/N.
TEST(PipelineBytes, AreThoseOfTheClosedForm) {
  constexpr std::int64_t kUnits = 8, kUnitNumel = 4096, kA = 3;
  for (const Mesh& mesh :
       {Mesh{.shard = 4}, Mesh{.pipeline = 2, .shard = 2}, Mesh{.replicate = 2, .shard = 2},
        Mesh{.pipeline = 2, .replicate = 2, .shard = 2}, Mesh{.pipeline = 4, .replicate = 2}})
    for (int stage = 0; stage <= 3; ++stage)
      for (const ReduceWhen reduce : {ReduceWhen::each, ReduceWhen::last})
        for (const int over_replicas : {0, 1, 2}) {  // nothing, states, parameters
          if (over_replicas > 0 && (stage == 0 || mesh.replicate == 1)) continue;
          if (over_replicas > 1 && stage < 3) continue;
          EngineOptions options = pipeline_options(mesh, kUnits, kA);
          options.strategy.placements = Placements::of_stage(stage);
          options.strategy.reduce = reduce;
          options.strategy.state_over_replicas = over_replicas > 0;
          options.strategy.parameters_over_replicas = over_replicas > 1;
          if (mesh.pipeline > 1) options.strategy.pipeline.schedule = PipelineSchedule::gpipe;
          SCOPED_TRACE(to_string(mesh) + " stage " + std::to_string(stage) +
                       (reduce == ReduceWhen::each ? " each" : " last"));
          const std::int64_t units = kUnits / mesh.pipeline, psi = units * kUnitNumel;
          const std::int64_t n = mesh.shard, r = mesh.replicate;
          const std::int64_t others = psi / n * (n - 1);  // f Ψ
          // Gathered at stage 3: each unit in both passes of each microbatch, but where one use follows
          // another of the same unit (one microbatch's last forward and first backward, say) it stays.
          std::int64_t stays = mesh.pipeline == 1 ? kA + kA - 1 : 1;
          if (units == 1) stays = 2 * kA - 1;
          const std::int64_t gathers = stage < 3 || n == 1
                                           ? (n > 1 ? others : 0)
                                           : (2 * kA * units - stays) * (kUnitNumel / n * (n - 1));
          const std::int64_t reductions = reduce == ReduceWhen::each ? kA : 1;
          const std::int64_t shard = 4 * (reductions * others + gathers);
          const std::int64_t replicate = 4 * (psi / n / r) * (r - 1) * 2;
          const IdVector<Traffic> traffic = traffic_of(options, chain(kUnits, kUnitNumel));
          for (int rank = 0; rank < mesh.world(); ++rank) {
            const Traffic& seen = traffic[rank];
            const int place = mesh.coordinates(rank)[0];
            const int ends = (place > 0 ? 1 : 0) + (place + 1 < mesh.pipeline ? 1 : 0);
            EXPECT_EQ(seen.shard, shard);
            EXPECT_EQ(seen.replicate, replicate);
            EXPECT_EQ(seen.pipeline, ends * kA * kNumel * 4);
          }
        }
}

// ---- memory ----

TEST(PipelineMemory, NeverHoldsMoreThanThePlan) {
  for (const ScheduleRow& row : schedules_of_whole_backwards()) {
    EngineOptions options = pipeline_options({.pipeline = 3, .shard = 2}, 12, 6);
    options.strategy.placements = Placements::of_stage(3);
    options.strategy.pipeline = {.schedule = row.schedule, .chunks = row.chunks_of(2), .cuts = {}};
    run_local(6, kBlocking, [&](Communicator world) {
      Engine engine(world, chain(12), options);
      engine.initialize(toy_fill());
      for (int step = 0; step < 2; ++step) pipeline_step(engine, {.step = step, .microbatches = 6});
      EXPECT_LE(engine.bytes().peak_total(), engine.plan().space(Space::device).arena_bytes) << row.name;
      EXPECT_GT(engine.bytes().peak_total(), engine.plan().space(Space::device).persistent_bytes) << row.name;
    });
  }
}

TEST(PipelineMemory, ABudgetThatOneRankOfThePipelineExceedsIsRefusedOnAll) {
  EngineOptions options = pipeline_options({.pipeline = 2}, 5, 2);
  std::int64_t largest = 0;
  run_local(2, kBlocking, [&](Communicator world) {
    const Engine engine(world, toy_units(DType::fp32), options);
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    largest = std::max(largest, engine.plan().space(Space::device).arena_bytes);
  });
  options.budget.device_bytes = largest - 1;
  IdVector<std::string> messages(2);
  run_local(2, kBlocking, [&](Communicator world) {
    messages[world.rank()] = refusal([&] { Engine(world, toy_units(DType::fp32), options); });
  });
  const std::string needs = " needs " + std::to_string(largest) + ": 1 bytes are missing\n";
  EXPECT_NE(messages[0].find(needs), std::string::npos) << messages[0];
  EXPECT_EQ(messages[0], messages[1]);
  options.budget.device_bytes = largest;
  run_local(2, kBlocking, [&](Communicator world) { Engine(world, toy_units(DType::fp32), options); });
}

// A budget of one rank's own: that rank looks for what would fit, and all say what it found.
TEST(PipelineMemory, ABudgetThatOneRankExceedsIsExplainedByThatRank) {
  IdVector<std::string> messages(4);
  run_local(4, kBlocking, [&](Communicator world) {
    EngineOptions options = pipeline_options({.pipeline = 2, .shard = 2}, 5, 2);
    if (world.rank() >= 2) options.budget.device_bytes = 100 * world.rank();
    messages[world.rank()] = refusal([&] { Engine(world, toy_units(DType::fp32), options); });
  });
  EXPECT_EQ(messages[0].find("budget.device_bytes is 200 bytes, but the plan of pipeline rank "), 0u)
      << messages[0];
  EXPECT_EQ(messages, std::vector<std::string>(4, messages[0]));
}

// ---- failures ----

// Four pipeline ranks train; in the second step one goes wrong in a backward.
std::vector<Fate> fates_with(int culprit, const std::function<void()>& wrong) {
  EngineOptions options = pipeline_options({.pipeline = 4}, 5, 6);
  options.waits.deadline = kDeadline;
  return run_failing(options, [&](Engine& engine, int rank) {
    pipeline_step(engine, {.microbatches = 6});
    engine.begin(StepKind::train, 6);
    pipeline_uses(engine, {.step = 1}, 0, [&](const Instruction& use) {
      if (rank == culprit && use.pass == Pass::backward && use.microbatch == 2) wrong();
    });
    (void)engine.step({.learning_rate = 0.01});
  });
}

TEST(PipelineFaults, ANeighbourThatThrowsIsNamedByAll) {
  for (int culprit : {0, 2, 3}) {
    const IdVector<Fate> fates = fates_with(culprit, [] { throw std::runtime_error("the disk is full"); });
    for (int rank = 0; rank < 4; ++rank)
      if (rank != culprit) expect_blames(fates[rank], culprit);
  }
}

TEST(PipelineFaults, ANeighbourThatStallsIsNamedByAllWithinTheDeadline) {
  for (int culprit : {0, 2}) {
    const IdVector<Fate> fates =
        fates_with(culprit, [] { std::this_thread::sleep_for(kDeadline + 2 * kGrace); });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == culprit) continue;
      const Fate& fate = fates[rank];
      EXPECT_EQ(fate.kind, Fate::Kind::communication) << fate.message;
      EXPECT_EQ(fate.culprit, culprit) << "rank " << rank << ": " << fate.message;
      EXPECT_LT(fate.after, kDeadline + kGrace) << fate.message;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
