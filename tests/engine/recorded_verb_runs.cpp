// Recorded runs of the toy model, driven by the engine's verbs: what a Trainer never does.
#include <filesystem>
#include <limits>
#include <utility>

#include "tessera/layout.h"
#include "tests/engine/recorded_runs.h"

namespace tessera::testing {
namespace {

using Drive = std::function<void(Engine&, History&)>;

EngineOptions verb_options(int world, int stage) {
  EngineOptions options = toy_options(world, stage);
  options.programs = {{.kind = StepKind::train, .microbatches = 2}, {.kind = StepKind::evaluate}};
  options.debug.poison = true;
  options.disk_directory = std::filesystem::temp_directory_path();
  return options;
}

RecordedRun recorded(const std::string& name, const EngineOptions& options, DType type, const Drive& drive) {
  return {.name = "verbs_" + name, .run = [=] {
            return on_ranks(options.mesh.world(), [&](const Communicator& world) {
              Engine engine(world, toy_units(type), options);
              engine.initialize(toy_fill());
              History history;
              drive(engine, history);
              history.weights = read_everything(engine);
              return history;
            });
          }};
}

// The last rank skips uses, others of each microbatch.
void skip_uses(Engine& engine, History& history) {
  for (int step = 0; step < 4; ++step) {
    ToyStep how{.step = step, .microbatches = 2};
    if (engine.rank() + 1 == engine.world())
      how.skip = [](UnitId unit, Pass, int microbatch) {
        return microbatch == 0 ? unit == kHead || unit == kBlock0 : unit == kEmbed || unit == kBlock1;
      };
    history.steps.push_back(toy_step(engine, how));
  }
}

// Ranks and microbatches of different weight.
void weigh_unevenly(Engine& engine, History& history) {
  for (int step = 0; step < 4; ++step) {
    engine.begin(StepKind::train, 2);
    const auto units = engine.layout().units().count();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      for (UnitId unit = 0; unit < units; ++unit) engine.use(unit, Pass::forward).end();
      for (UnitId unit = units - 1; unit >= 0; --unit) {
        UnitLease lease = engine.use(unit, Pass::backward);
        write_gradients(engine, lease, {.step = step}, static_cast<float>(1 + microbatch * 4));
        lease.end();
      }
      const LossTotal total{.sum = 0.1 * (step + 1) + engine.rank(),
                            .counted = 3 + 5 * microbatch + engine.rank()};
      engine.add_loss(&total);
    }
    history.steps.push_back(
        engine.step({.learning_rate = 0.01, .weight = 0.25 * engine.rank(), .loss = 0.3 * step}));
  }
}

// Gradients are read ahead of the decision, masters read and written between steps.
void look_and_write(Engine& engine, History& history) {
  for (int step = 0; step < 4; ++step) {
    const ToyStep how{.step = step, .microbatches = 2};
    engine.begin(StepKind::train, 2);
    toy_uses(engine, how);
    std::vector<float> gradient(static_cast<std::size_t>(engine.layout().place(kBlockWeight).numel));
    engine.read_gradient(kBlockWeight, 0, gradient);
    double loss = 0;
    for (const float value : gradient) loss = 0.5 * loss + static_cast<double>(value);
    history.steps.push_back(
        engine.step({.learning_rate = 0.01, .weight = toy_weight(engine.rank()), .loss = loss}));
    std::vector<float> master(7);
    engine.read(kBlockWeight, StateKind::master, 20, master);
    for (float& value : master) value *= 0.5f;
    engine.write(kBlockWeight, StateKind::master, 100, master);
  }
}

void evaluate(Engine& engine, History& history, const StepTerms& terms, double loss) {
  engine.begin(StepKind::evaluate, 1, terms);
  toy_uses(engine, {}, StepKind::evaluate);
  const LossTotal total{.sum = loss, .counted = 2 + engine.rank()};
  engine.add_loss(&total);
  history.steps.push_back(engine.step({.weight = 0}));
}

// A gradient that is not finite, an abandoned step, an evaluation that goes on with the sums of another.
void interrupt(Engine& engine, History& history) {
  const auto spoilt = [](const GradientAt& at) {
    return at.rank == 1 && at.parameter == kBlockScale ? std::numeric_limits<float>::infinity()
                                                       : toy_gradient(at);
  };
  history.steps.push_back(toy_step(engine, {.step = 0, .microbatches = 2}));
  history.steps.push_back(toy_step(engine, {.step = 1, .microbatches = 2, .gradient = spoilt}));
  history.steps.push_back(toy_step(engine, {.step = 2, .microbatches = 2, .learning_rate = 0.02}));
  engine.begin(StepKind::train, 2);
  for (int use = 0; use <= engine.rank(); ++use) engine.use(use, Pass::forward).end();
  history.steps.push_back(engine.abandon());
  evaluate(engine, history, {}, 1.25);
  evaluate(engine, history, {.continues = true}, 0.1);
  history.steps.push_back(toy_step(engine, {.step = 3, .microbatches = 2}));
  engine.finish_updates();
  history.steps.push_back(toy_step(engine, {.step = 4, .microbatches = 2}));
}

// Forward of block.0 holds that of block.1, backward likewise; one microbatch.
std::vector<Use> nested_order() {
  return {
      {kEmbed, Pass::forward},      {kBlock0, Pass::forward, UseEdge::open},   {kBlock1, Pass::forward},
      {kActivation, Pass::forward}, {kBlock0, Pass::forward, UseEdge::close},  {kHead, Pass::forward},
      {kHead, Pass::backward},      {kBlock0, Pass::backward, UseEdge::open},  {kActivation, Pass::backward},
      {kBlock1, Pass::backward},    {kBlock0, Pass::backward, UseEdge::close}, {kEmbed, Pass::backward}};
}

void nest(Engine& engine, History& history) {
  for (int step = 0; step < 4; ++step) {
    engine.begin(StepKind::train);
    std::vector<UnitLease> open;
    for (const Use& use : nested_order()) {
      if (use.edge != UseEdge::close) open.push_back(engine.use(use.unit, use.pass));
      if (use.edge == UseEdge::open) continue;
      if (use.pass == Pass::backward) write_gradients(engine, open.back(), {.step = step});
      open.back().end();
      open.pop_back();
    }
    history.steps.push_back(engine.step(
        {.learning_rate = 0.01, .weight = toy_weight(engine.rank()), .loss = toy_loss(engine.rank(), step)}));
  }
}

EngineOptions nested_options(int stage) {
  EngineOptions options = verb_options(2, stage);
  options.programs = {{.kind = StepKind::train}};
  options.order = nested_order();
  return options;
}

}  // namespace

std::vector<RecordedRun> recorded_verb_runs() {
  EngineOptions clipped = verb_options(2, 3);
  clipped.clip.max_norm = 0.1;
  clipped.optimizer.moment_type = DType::bf16;
  EngineOptions scaled = verb_options(2, 2);
  scaled.loss_scaling = LossScaleOptions{.initial = 64, .growth_interval = 2};
  EngineOptions next = clipped;
  next.strategy.update = UpdateWhen::next;
  next.strategy.offload = {.states = Space::disk, .states_on_device = 0.5};
  EngineOptions added = verb_options(2, 1);
  added.overwrites_gradients = false;
  return {recorded("skipped_uses_stage0", verb_options(2, 0), DType::bf16, skip_uses),
          recorded("skipped_uses_stage3", verb_options(3, 3), DType::bf16, skip_uses),
          recorded("uneven_weights_stage1", verb_options(3, 1), DType::fp32, weigh_unevenly),
          recorded("uneven_weights_stage3_clipped", clipped, DType::bf16, weigh_unevenly),
          recorded("looked_at_stage2", verb_options(2, 2), DType::bf16, look_and_write),
          recorded("looked_at_next", next, DType::bf16, look_and_write),
          recorded("interrupted_stage0", verb_options(2, 0), DType::fp32, interrupt),
          recorded("interrupted_scaled_fp16", scaled, DType::fp16, interrupt),
          recorded("interrupted_next", next, DType::bf16, interrupt),
          recorded("zero_gradients", added, DType::bf16, skip_uses),
          recorded("nested_stage1", nested_options(1), DType::fp32, nest),
          recorded("nested_stage3", nested_options(3), DType::bf16, nest)};
}

}  // namespace tessera::testing
