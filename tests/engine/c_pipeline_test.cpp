// A trainer in C on whole meshes, with compute of its own: the bits of the C++ engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/engine.h"
#include "tests/engine/c_pipeline.h"

namespace tessera::testing {
namespace {

struct Case {
  Mesh mesh;
  int stage = 0;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int chunks = 1;
  std::vector<int> cuts = {};
  bool gather_once = false;
  bool over_replicas = false;
};

std::vector<UnitSpec> chain_units() {
  std::vector<UnitSpec> units;
  for (int unit = 0; unit < CHAIN_UNITS; ++unit) {
    const std::string name = "unit." + std::to_string(unit);
    units.push_back({.name = name, .parameters = {{.name = name + ".w", .shape = {CHAIN_NUMEL}}}});
  }
  return units;
}

chain_run run_c(const Case& of) {
  chain_run run = {};
  EXPECT_EQ(tessera_options_init(&run.options, sizeof run.options), TESSERA_OK);
  tessera_options& o = run.options;
  o.pipeline = of.mesh.pipeline;
  o.replicate = of.mesh.replicate;  // shard is what is left
  o.stage = of.stage;
  o.schedule = static_cast<std::int32_t>(of.schedule);
  o.chunks = of.chunks;
  o.cuts = of.cuts.data();
  o.cut_count = static_cast<std::int32_t>(of.cuts.size());
  o.gather_once = of.gather_once;
  o.state_over_replicas = o.parameters_over_replicas = of.over_replicas;
  o.microbatches = CHAIN_MICROBATCHES;
  o.weight_decay = 0.1;
  EXPECT_EQ(tessera_run_ranks(of.mesh.world(), 60'000, chain_rank_main, &run), TESSERA_OK)
      << tessera_last_error();
  return run;
}

void cpp_use(Engine& engine, const Instruction& use, int data_rank, int step, StepInputs& inputs) {
  UnitLease lease = engine.use(use.unit, use.pass);
  const auto unit = static_cast<std::size_t>(use.unit);
  const auto at = [&](const PerMicrobatch& buffers) {
    const BufferId buffer = buffers.of(use.microbatch);
    return buffer < 0 ? nullptr : static_cast<float*>(engine.address(buffer));
  };
  const std::vector<UnitBuffers>& buffers = engine.running().unit_buffers;
  std::array<float, CHAIN_NUMEL> own_input, end;
  chain_input(own_input.data(), data_rank, step, use.microbatch);
  const float* input = use.unit == 0 ? own_input.data() : at(buffers[unit - 1].output);
  const auto* weight = static_cast<const float*>(lease.parameter(use.unit).data);
  const bool last = use.unit == CHAIN_UNITS - 1;
  if (use.pass == Pass::forward) {
    if (!last) chain_forward(weight, input, at(buffers[unit].output));
  } else {
    if (last) chain_forward(weight, input, end.data());
    if (last) inputs.loss += chain_loss(end.data()), inputs.weight += 1;
    chain_backward(weight, input, last ? end.data() : at(buffers[unit].output_gradient),
                   static_cast<float*>(lease.gradient(use.unit).data), lease.gradient_beta(),
                   use.unit == 0 ? nullptr : at(buffers[unit - 1].output_gradient));
  }
  lease.end();
}

chain_run run_cpp(const Case& of) {
  chain_run run = {};
  EngineOptions options;
  options.mesh = of.mesh;
  options.strategy.placements = Placements::of_stage(of.stage);
  options.strategy.pipeline = {
      .schedule = of.schedule, .chunks = of.chunks, .cuts = of.cuts, .gather_once = of.gather_once};
  options.strategy.state_over_replicas = options.strategy.parameters_over_replicas = of.over_replicas;
  options.optimizer.options = AdamWOptions{.weight_decay = 0.1};
  ActivationSpec activations;
  activations.units.assign(CHAIN_UNITS, {.output_bytes = CHAIN_NUMEL * 4, .reads_batch = false});
  activations.units.back().output_bytes = 0;
  options.programs = {
      {.kind = StepKind::train, .microbatches = CHAIN_MICROBATCHES, .activations = activations}};
  run_local(of.mesh.world(), {}, [&](Communicator world) {
    Engine engine(world, chain_units(), options);
    engine.initialize([](ParameterId parameter, std::int64_t begin, std::span<float> values) {
      chain_fill(parameter, begin, values.data(), static_cast<std::int64_t>(values.size()), nullptr);
    });
    for (int step = 0; step < CHAIN_STEPS; ++step) {
      StepInputs inputs{.learning_rate = 0.01, .weight = 0.0};
      engine.begin(StepKind::train, CHAIN_MICROBATCHES);
      for (const Instruction& use : engine.program(0).instructions)
        if (use.op == Opcode::use) cpp_use(engine, use, of.mesh.data_rank(world.rank()), step, inputs);
      const StepResult result = engine.step(inputs);
      if (world.rank() > 0) continue;
      run.losses[step] = result.loss;
      run.norms[step] = result.gradient_norm;
    }
    std::array<float, CHAIN_NUMEL> values;
    for (int unit = 0; unit < CHAIN_UNITS; ++unit) {
      engine.read(unit, State::master, 0, values);
      if (world.rank() == 0) std::ranges::copy(values, run.weights + unit * CHAIN_NUMEL);
    }
  });
  return run;
}

void expect_equal(const chain_run& c, const chain_run& cpp) {
  EXPECT_EQ(std::memcmp(c.losses, cpp.losses, sizeof c.losses), 0) << c.losses[0] << " " << cpp.losses[0];
  EXPECT_EQ(std::memcmp(c.norms, cpp.norms, sizeof c.norms), 0);
  EXPECT_EQ(std::memcmp(c.weights, cpp.weights, sizeof c.weights), 0);
}

TEST(CPipeline, HasTheBitsOfTheEngineOnEveryMesh) {
  const Mesh two{.pipeline = 2}, four{.pipeline = 2, .shard = 2}, hybrid{.replicate = 2, .shard = 2};
  for (const Case& of : std::vector<Case>{
           {.mesh = two},
           {.mesh = two, .stage = 3, .schedule = PipelineSchedule::gpipe, .cuts = {1}, .gather_once = true},
           {.mesh = four, .stage = 3, .schedule = PipelineSchedule::interleaved, .chunks = 2},
           {.mesh = four, .stage = 2, .schedule = PipelineSchedule::looped, .chunks = 2},
           {.mesh = hybrid, .stage = 3, .over_replicas = true}}) {
    SCOPED_TRACE(to_string(of.mesh) + ", stage " + std::to_string(of.stage));
    const chain_run cpp = run_cpp(of);
    EXPECT_NE(cpp.losses[0], 0.0);
    EXPECT_NE(cpp.losses[0], cpp.losses[1]);
    expect_equal(run_c(of), cpp);
  }
}

// The pipeline changes no bits: that of one rank without it, over the same data ranks.
TEST(CPipeline, HasTheBitsOfOneRank) {
  expect_equal(run_c({.mesh = {.pipeline = 2}, .stage = 1}), run_cpp({.mesh = {}}));
}

TEST(CPipeline, RefusesWhatDoesNotFit) {
  const auto refusal = [](int ranks, const auto& change) -> std::string {
    chain_run run = {};
    tessera_options_init(&run.options, sizeof run.options);
    run.options.microbatches = CHAIN_MICROBATCHES;
    change(run.options);
    EXPECT_EQ(tessera_run_ranks(ranks, 20'000, chain_rank_main, &run), TESSERA_USAGE);
    return tessera_last_error();
  };
  EXPECT_NE(refusal(2, [](tessera_options& o) { o.pipeline = 2, o.schedule = 9; }).find("schedule 9"),
            std::string::npos);
  EXPECT_NE(refusal(2, [](tessera_options& o) { o.pipeline = 2, o.chunks = 2; }).find("chunks"),
            std::string::npos);
  EXPECT_NE(refusal(3, [](tessera_options& o) { o.pipeline = 2; }).find("shard is 0"), std::string::npos);
  EXPECT_NE(refusal(2, [](tessera_options& o) { o.pipeline = 2, o.cut_count = 1; }).find("cuts is null"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
