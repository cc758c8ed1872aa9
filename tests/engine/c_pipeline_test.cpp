// A trainer in C on whole meshes, with compute of its own: the bits of the C++ engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>

#include "tessera/engine.h"
#include "tessera/memory_plan.h"
#include "tessera/program.h"
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
  Recompute recompute = Recompute::none;
  Space activations = Space::device;
  bool saves = false;
  bool parameter_norms = false;
  std::optional<LossScaleOptions> loss_scaling = {};
};

std::vector<UnitSpec> chain_units() {
  std::vector<UnitSpec> units;
  for (int unit = 0; unit < CHAIN_UNITS; ++unit) {
    const std::string name = "unit." + std::to_string(unit);
    units.push_back({.name = name, .parameters = {{.name = name + ".w", .shape = {CHAIN_NUMEL}}}});
  }
  return units;
}

chain_run made_c(const Case& of) {
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
  o.recompute = static_cast<std::int32_t>(of.recompute);
  o.activations = static_cast<std::int32_t>(of.activations);
  o.parameter_norms = of.parameter_norms;
  if (of.loss_scaling) {
    o.initial_loss_scale = of.loss_scaling->initial;
    o.loss_scale_growth_factor = of.loss_scaling->growth_factor;
    o.loss_scale_growth_interval = of.loss_scaling->growth_interval;
    o.loss_scale_backoff_factor = of.loss_scaling->backoff_factor;
    o.min_loss_scale = of.loss_scaling->min;
    o.max_loss_scale = of.loss_scaling->max;
  }
  run.saves = of.saves;
  return run;
}

chain_run run_c(
    const Case& of, const std::function<void(chain_run&)>& change = [](chain_run&) {}) {
  chain_run run = made_c(of);
  change(run);
  EXPECT_EQ(tessera_run_ranks(of.mesh.world(), 60'000, chain_rank_main, &run), TESSERA_OK)
      << tessera_last_error();
  return run;
}

void cpp_use(Engine& engine, const Instruction& use, int data_rank, int step, StepInputs& inputs) {
  UnitLease lease = engine.use(use.unit, use.pass);
  const auto at = [&](Role role) { return static_cast<float*>(lease.address(role)); };
  std::array<float, CHAIN_NUMEL> own_input, end;
  chain_input(own_input.data(), data_rank, step, use.microbatch);
  const float* input = use.unit == 0 ? own_input.data() : at(Role::input);
  const auto* weight = static_cast<const float*>(lease.parameter(use.unit).data);
  const bool last = use.unit == CHAIN_UNITS - 1;
  if (use.pass == Pass::forward) {
    if (!last) chain_forward(weight, input, at(Role::output));
  } else if (use.pass == Pass::backward) {
    if (last) chain_forward(weight, input, end.data());
    if (last) inputs.loss += chain_loss(end.data()), inputs.weight += 1;
    if (last) std::ranges::for_each(end, [&](float& value) { value *= engine.loss_scale(); });
    chain_backward(weight, input, last ? end.data() : at(Role::output_gradient),
                   static_cast<float*>(lease.gradient(use.unit).data), lease.gradient_beta(),
                   at(Role::input_gradient));
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
  options.strategy.recompute = of.recompute;
  options.strategy.offload.activations = of.activations;
  options.parameter_norms = of.parameter_norms;
  options.loss_scaling = of.loss_scaling;
  options.optimizer.options = AdamWOptions{.weight_decay = 0.1};
  ActivationSpec activations;
  const std::int64_t bytes = CHAIN_NUMEL * 4, kept = of.saves ? bytes : 0;
  activations.units.assign(CHAIN_UNITS, UnitActivations{.output_bytes = bytes,
                                                        .saved_bytes = kept,
                                                        .recomputable_bytes = kept,
                                                        .workspace_bytes = kept,
                                                        .reads_batch = false});
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
      run.loss_scales[step] = result.loss_scale;
      run.parameter_norm_counts[step] = static_cast<std::int32_t>(result.parameter_norms.size());
      std::ranges::copy(result.parameter_norms, run.parameter_norms[step]);
    }
    if (world.rank() == 0) {
      run.steps_applied = engine.steps_applied();
      for (const Space space : {Space::device, Space::host})
        run.arenas[static_cast<int>(space)] = engine.plan().space(space).arena_bytes;
    }
    std::array<float, CHAIN_NUMEL> values;
    for (int unit = 0; unit < CHAIN_UNITS; ++unit) {
      engine.read(unit, StateKind::master, 0, values);
      if (world.rank() == 0) std::ranges::copy(values, run.weights + unit * CHAIN_NUMEL);
    }
  });
  return run;
}

void expect_equal(const chain_run& c, const chain_run& cpp) {
  EXPECT_EQ(std::memcmp(c.losses, cpp.losses, sizeof c.losses), 0) << c.losses[0] << " " << cpp.losses[0];
  EXPECT_EQ(std::memcmp(c.norms, cpp.norms, sizeof c.norms), 0);
  EXPECT_EQ(std::memcmp(c.loss_scales, cpp.loss_scales, sizeof c.loss_scales), 0);
  EXPECT_EQ(c.steps_applied, cpp.steps_applied);
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

// Weight gradients that run apart have the bits of those that do not.
TEST(CPipeline, SplitsBackwards) {
  for (const Case& of : std::vector<Case>{{.mesh = {.pipeline = 2}, .saves = true},
                                          {.mesh = {.pipeline = 2, .shard = 2}, .stage = 2}}) {
    SCOPED_TRACE(to_string(of.mesh));
    expect_equal(run_c(of,
                       [](chain_run& run) {
                         run.options.schedule = TESSERA_ZB_H1;
                         run.options.poison = run.splits_backward = 1;
                       }),
                 run_cpp(of));
    chain_run whole = made_c(of);
    whole.options.schedule = TESSERA_ZB_H1;
    EXPECT_EQ(tessera_run_ranks(of.mesh.world(), 20'000, chain_rank_main, &whole), TESSERA_USAGE);
    EXPECT_NE(std::strstr(tessera_last_error(), "splits_backward"), nullptr) << tessera_last_error();
  }
}

const Mesh kTwo{.pipeline = 2}, kSharded{.shard = 2};

// What units keep is there in backward (chain_has_saved), wherever it waited and whoever made it again; the
// bits are those without, the plans those of the engine.
TEST(CPipeline, RecomputesAndOffloadsActivations) {
  for (const Mesh& mesh : {Mesh{}, kSharded, kTwo}) {
    const chain_run plain = run_c({.mesh = mesh});
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
      for (const Space space : {Space::device, Space::host}) {
        SCOPED_TRACE(to_string(mesh) + " " + std::string(name_of(recompute)) + ", " +
                     std::string(name_of(space)));
        const Case of{.mesh = mesh, .recompute = recompute, .activations = space, .saves = true};
        const chain_run c = run_c(of, [](chain_run&run) { run.options.poison = 1; }), cpp = run_cpp(of);
        expect_equal(c, plain);
        expect_equal(c, cpp);
        EXPECT_EQ(c.arenas[0], cpp.arenas[0]);
        EXPECT_EQ(c.arenas[1], cpp.arenas[1]);
        EXPECT_EQ(c.arenas[1] > 0, space == Space::host);
      }
  }
}

TEST(CPipeline, TellsParameterNorms) {
  for (const Mesh& mesh : {Mesh{}, kSharded, kTwo}) {
    SCOPED_TRACE(to_string(mesh));
    const chain_run c = run_c({.mesh = mesh, .parameter_norms = true}),
                    cpp = run_cpp({.mesh = mesh, .parameter_norms = true});
    expect_equal(c, cpp);
    EXPECT_EQ(c.parameter_norm_counts[0], CHAIN_UNITS);
    EXPECT_GT(c.parameter_norms[0][1], 0.0);
    EXPECT_EQ(std::memcmp(c.parameter_norms, cpp.parameter_norms, sizeof c.parameter_norms), 0);
    EXPECT_EQ(run_c({.mesh = mesh}).parameter_norm_counts[0], 0);
  }
}

// A scale with which gradients overflow, then one that grows to its most; and one that falls to its least.
TEST(CPipeline, ScalesTheLoss) {
  const LossScaleOptions grows{.initial = 0x1p8, .growth_factor = 8, .growth_interval = 1, .max = 0x1p10};
  const LossScaleOptions skips{.initial = 0x1p127,
                               .growth_factor = 4,
                               .growth_interval = 1,
                               .backoff_factor = 0x1p-10,
                               .max = 0x1p127};
  LossScaleOptions falls = skips;
  falls.min = 0x1p120;
  using Scales = std::array<double, CHAIN_STEPS>;
  struct Expected {
    LossScaleOptions options;
    Scales scales;
    int applied = 0;
  };
  for (const Mesh& mesh : {Mesh{}, kSharded})
    for (const auto& [options, scales, applied] :
         {Expected{grows, {0x1p8, 0x1p10, 0x1p10}, 3}, Expected{skips, {0x1p127, 0x1p117, 0x1p119}, 2},
          Expected{falls, {0x1p127, 0x1p120, 0x1p122}, 2}}) {
      SCOPED_TRACE(to_string(mesh) + " from " + std::to_string(options.initial));
      const Case of{.mesh = mesh, .parameter_norms = true, .loss_scaling = options};
      const chain_run c = run_c(of);
      expect_equal(c, run_cpp(of));
      EXPECT_EQ(std::to_array(c.loss_scales), scales);
      EXPECT_EQ(c.steps_applied, applied);
      EXPECT_EQ(c.parameter_norm_counts[0], applied == 3 ? CHAIN_UNITS : 0) << "a step that was skipped";
    }
}

TEST(CPipeline, BudgetsTheHost) {
  for (const Mesh& mesh : {Mesh{}, kSharded}) {
    const Case of{.mesh = mesh, .activations = Space::host};
    const std::int64_t needed = run_c(of).arenas[1];
    ASSERT_GT(needed, 0);
    run_c(of, [&](chain_run& run) { run.options.host_memory_bytes = needed; });
    chain_run run = made_c(of);
    run.options.host_memory_bytes = needed - 1;
    EXPECT_EQ(tessera_run_ranks(mesh.world(), 20'000, chain_rank_main, &run), TESSERA_USAGE);
    EXPECT_NE(std::strstr(tessera_last_error(), "host_memory_bytes"), nullptr) << tessera_last_error();
  }
}

TEST(CPipeline, StrictOrderPoisonAndTimingChangeNoBits) {
  for (const Mesh& mesh : {Mesh{}, kSharded, kTwo}) {
    SCOPED_TRACE(to_string(mesh));
    const chain_run cpp = run_cpp({.mesh = mesh, .stage = mesh.shard > 1 ? 3 : 0});
    const chain_run c = run_c({.mesh = mesh, .stage = mesh.shard > 1 ? 3 : 0}, [](chain_run& run) {
      run.options.strict_order = run.options.poison = run.trace = 1;
    });
    expect_equal(c, cpp);
    EXPECT_GT(c.timing.total_us, 0.0);
    EXPECT_GE(c.timing.total_us, c.timing.issue_us);
    EXPECT_GE(c.timing.exposed_us, 0.0);
    EXPECT_TRUE(mesh.world() == 1 || c.timing.communication_us > 0.0);
    EXPECT_EQ(run_c({.mesh = mesh}).timing.total_us, 0.0) << "not traced";
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
