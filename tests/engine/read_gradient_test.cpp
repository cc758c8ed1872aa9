// Reduced gradients, looked at before the step that applies them.
#include <fmt/format.h>

#include <gmock/gmock.h>
#include <algorithm>

#include "tessera/pipeline.h"
#include "tessera/program.h"
#include "tests/engine/toy.h"
#include "tests/refusal.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

// The uses of this rank, whatever its place in the pipeline.
void run_uses(Engine& engine, const ToyStep& step) {
  engine.begin(StepKind::train, step.microbatches);
  for (const Instruction& use : engine.running().instructions) {
    if (use.op != Opcode::use) continue;
    UnitLease lease = engine.use(use.unit, use.pass);
    if (use.pass == Pass::backward) write_gradients(engine, lease, step, engine.loss_scale());
    lease.end();
  }
}

StepResult end_step(Engine& engine) {
  return engine.step({.learning_rate = 0.01, .weight = toy_weight(engine.rank())});
}

// By index: what all uses on all ranks of their unit's pipeline rank gave, added up. Exact in any order.
std::vector<float> expected_gradient(const Engine& engine, ParameterId parameter, const ToyStep& step) {
  const Layout& layout = engine.layout();
  const Mesh& mesh = engine.options().mesh;
  const Partition partition(layout.units().count(), mesh.pipeline, engine.options().strategy.pipeline);
  std::vector<float> sum(static_cast<std::size_t>(layout.place(parameter).numel));
  for (ParameterId id = 0; id < layout.parameters(); ++id) {
    if (layout.place(id).home != layout.place(parameter).home) continue;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      if (mesh.place(rank, Axis::pipeline) != partition.rank_of(layout.unit_of(id))) continue;
      for (int microbatch = 0; microbatch < step.microbatches; ++microbatch)
        for (std::size_t k = 0; k < sum.size(); ++k)
          sum[k] += engine.loss_scale() *
                    step.gradient({id, static_cast<std::int64_t>(k), step.step, microbatch, rank});
    }
  }
  return sum;
}

struct Case {
  std::string name;
  EngineOptions options;
  int microbatches = 1;
};

std::vector<Case> cases(const std::string& folder) {
  std::vector<Case> all;
  const auto add = [&](std::string name, const Mesh& mesh, int stage, int microbatches,
                       const std::function<void(EngineOptions&)>& change = {}) {
    EngineOptions options = toy_options(mesh.shard, stage);
    options.mesh = mesh;
    options.programs = {{.microbatches = microbatches}};
    options.debug.poison = true;
    if (change) change(options);
    name += fmt::format(", mesh {} x {} x {}, stage {}, {} microbatches", mesh.pipeline, mesh.replicate,
                        mesh.shard, stage, microbatches);
    all.push_back({name, options, microbatches});
  };
  for (int stage = 0; stage <= 3; ++stage)
    for (int microbatches : {1, 2}) {
      add("plain", {}, stage, microbatches);
      add("plain", {.shard = 3}, stage, microbatches);
      add("replicas", {.replicate = 2, .shard = 2}, stage, microbatches);
      add("pipeline", {.pipeline = 2, .shard = 2}, stage, microbatches);
    }
  add("slices", {.replicate = 2, .shard = 2}, 3, 2,
      [](EngineOptions& o) { o.strategy.state_over_replicas = o.strategy.parameters_over_replicas = true; });
  add("last", {.shard = 2}, 2, 2, [](EngineOptions& o) { o.strategy.reduce = ReduceWhen::last; });
  add("scaled", {.shard = 2}, 2, 1,
      [](EngineOptions& o) { o.loss_scaling = LossScaleOptions{.initial = 64}; });
  for (const Space space : {Space::host, Space::disk})
    for (const UpdateWhen when : {UpdateWhen::decided, UpdateWhen::next})
      add(fmt::format("states on {}, updates {}", name_of(space), name_of(when)), {.shard = 2}, 2, 2,
          [&](EngineOptions& o) {
            o.strategy.offload.states = space;
            o.strategy.update = when;
            o.disk_directory = folder;
          });
  return all;
}

TEST(ReadGradient, GivesTheSumOverRanksAndMicrobatches) {
  const TemporaryFolder folder;
  for (const Case& of : cases(folder.file("")))
    for (const DType type : {DType::fp32, DType::bf16}) {
      SCOPED_TRACE(of.name + ", " + std::string(name_of(type)));
      run_local(of.options.mesh.world(), kBlocking, [&](Communicator world) {
        Engine engine(world, toy_units(type), of.options),
            other(world.duplicate("other"), toy_units(type), of.options);
        for (Engine* each : {&engine, &other}) each->initialize(toy_fill());
        for (int step = 0; step < 2; ++step) {
          const ToyStep toy{.step = step, .microbatches = of.microbatches};
          run_uses(engine, toy);
          for (ParameterId id = 0; id < engine.layout().parameters(); ++id) {
            if (!engine.layout().parameter(id).trainable) continue;
            const std::vector<float> expected = expected_gradient(engine, id, toy);
            std::vector<float> found(expected.size(), -99.0f);
            engine.read_gradient(id, 0, found);
            EXPECT_EQ(found, expected) << engine.layout().parameter(id).name;
            if (expected.size() < 12) continue;
            std::vector<float> part(expected.size() - 11);
            engine.read_gradient(id, 10, part);
            EXPECT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + 10));
          }
          EXPECT_TRUE(end_step(engine).applied);
          run_uses(other, toy);
          EXPECT_TRUE(end_step(other).applied);
        }
        EXPECT_EQ(read_everything(engine), read_everything(other)) << "who only looks changes nothing";
      });
    }
}

TEST(ReadGradient, IsRefusedWhereThereIsNone) {
  std::vector<float> one(1);
  const auto engine_of = [](const EngineOptions& options, const std::function<void(Engine&)>& body) {
    Engine engine(make_local_world(1)[0], toy_units(DType::fp32), options);
    body(engine);
  };
  EngineOptions options = toy_options(1, 0);
  options.programs = {{.kind = StepKind::train}, {.kind = StepKind::evaluate}};
  engine_of(options, [&](Engine& engine) {  // what does not exist leaves the engine as it was
    run_uses(engine, {});
    expect_words(refusal([&] { engine.read_gradient(kFrozen, 0, one); }), {"block.0.frozen", "frozen"});
    expect_words(refusal([&] { engine.read_gradient(99, 0, one); }), {"read_gradient: parameter 99"});
    expect_words(refusal([&] { engine.read_gradient(kEmbedWeight, 520, one); }), {"1 elements from 520 on"});
    EXPECT_TRUE(end_step(engine).applied);
    expect_words(refusal([&] { engine.read_gradient(kEmbedWeight, 0, one); }), {"no training step"});
  });
  engine_of(options, [&](Engine& engine) {
    engine.begin(StepKind::train);
    expect_words(refusal([&] { engine.read_gradient(kEmbedWeight, 0, one); }),
                 {"read_gradient: the program expects", "forward of embed"});
  });
  engine_of(options, [&](Engine& engine) {
    engine.begin(StepKind::evaluate);
    toy_uses(engine, {}, StepKind::evaluate);
    expect_words(refusal([&] { engine.read_gradient(kEmbedWeight, 0, one); }), {"no training step"});
  });
  options.strategy.update = UpdateWhen::reduced;
  engine_of(options, [&](Engine& engine) {
    engine.begin(StepKind::train, 1, {.learning_rate = 0.01, .weight = toy_weight(0)});
    toy_uses(engine, {});
    expect_words(refusal([&] { engine.read_gradient(kEmbedWeight, 0, one); }),
                 {"strategy.update reduced", "gone"});
  });
}

TEST(ReadGradient, RangesThatDifferAreNamed) {
  std::vector<std::string> messages;
  EXPECT_THROW(run_local(
                   2, kBlocking,
                   [&](Communicator world) {
                     Engine engine(world, toy_units(DType::fp32), toy_options(2, 2));
                     engine.begin(StepKind::train);
                     toy_uses(engine, {});
                     std::vector<float> one(1);
                     engine.read_gradient(kEmbedWeight, world.rank(), one);
                   },
                   &messages),
               Error);
  for (const std::string& message : messages)
    EXPECT_THAT(message, ::testing::HasSubstr("elements from 1 on of the gradient of embed.weight"));
}

}  // namespace
}  // namespace tessera::testing
