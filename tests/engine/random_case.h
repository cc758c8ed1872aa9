// A random case: a model or units, a mesh, a history of steps, and two strategies to run it by.
#pragma once

#include <memory>
#include <optional>
#include <sstream>

#include "src/build/holders.h"
#include "src/trainer/trainer_programs.h"
#include "tests/engine/matrix.h"
#include "tests/engine/random_model.h"

namespace tessera::testing {

struct StepShape {
  StepKind kind = StepKind::train;
  int microbatches = 1;
  BatchShape batch;
};

struct Event {
  enum class Kind { step, abandon, change_strategy, finish_updates, read, write } kind = Kind::step;
  int program = 0;
  double learning_rate = 0.01;
  int spoilt_unit = -1;   // whose gradient is infinite, of the data rank and microbatch `at`
  int skipped_rank = -1;  // the data rank that skips the microbatch `at`
  int at = 0;
  int uses = 0;  // before it is abandoned, by half of the ranks
};

struct RandomCase {
  std::uint64_t seed = 0;
  DType type = DType::fp32;
  std::string model_name;
  std::shared_ptr<const Model> model;  // none: of a trainer that owns its activations
  std::vector<UnitSpec> units;
  std::vector<Use> order;  // without a model
  IdVector<StepShape> shapes;
  std::vector<Event> events;
  EngineOptions plain;
  std::vector<EngineOptions> varied;  // the second: behind Event::change_strategy
};

// Uses of all units in one pass, some of them twice, some inside others.
inline void draw_pass(Draws& draws, Pass pass, const std::vector<UnitId>& units, std::vector<Use>& order) {
  std::vector<UnitId> open;
  const auto close = [&] {
    order.push_back({open.back(), pass, UseEdge::close});
    open.pop_back();
  };
  for (const UnitId unit : units) {
    for (int times = draws.chance(15) ? 2 : 1; times > 0; --times) {
      if (pass == Pass::backward && draws.chance(20)) order.push_back({unit, Pass::recompute});
      const bool nests = open.size() < 3 && draws.chance(25);
      order.push_back({unit, pass, nests ? UseEdge::open : UseEdge::whole});
      if (nests) open.push_back(unit);
    }
    while (!open.empty() && draws.chance(40)) close();
  }
  while (!open.empty()) close();
}

inline void draw_order(Draws& draws, RandomCase& of, int groups) {
  std::vector<ParameterSpec> before;
  std::vector<UnitId> units;
  for (int unit = draws.pick(1, 7); unit > 0; --unit) {
    UnitSpec made{.name = "unit" + std::to_string(unit), .parameters = {}};
    made.parameters = random_parameters(draws, made.name, of.type, groups, before);
    made.read_in_forward_only = draws.chance(15);
    if (unit == 1) made.parameters.push_back({.name = "learns", .shape = {7}});
    before.insert(before.end(), made.parameters.begin(), made.parameters.end());
    units.push_back(static_cast<int>(of.units.size()));
    of.units.push_back(made);
  }
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (std::size_t k = 1; k < units.size(); ++k)
      if (draws.chance(20)) std::swap(units[k], units[k - 1]);
    draw_pass(draws, pass, units, of.order);
    std::ranges::reverse(units);
  }
  of.model_name = "an order of its own, " + std::string(name_of(of.type));
}

inline void draw_model(Draws& draws, RandomCase& of, int groups) {
  const int kind = draws.pick(1, 12);
  of.type = draws.among<DType>({DType::fp32, DType::bf16});
  std::ostringstream name;
  std::optional<Model> model;
  if (kind > 9) return draw_order(draws, of, groups);
  if (kind == 1) {
    const Gpt2Config config{.vocabulary = draws.pick(3, 50),
                            .context = draws.pick(2, 12),
                            .layers = draws.pick(1, 4),
                            .heads = draws.pick(1, 3),
                            .channels = 6 * draws.pick(1, 4),
                            .dropout = draws.chance(50) ? 0.2 : 0.0,
                            .attention_dropout = draws.chance(50) ? 0.3 : 0.0};
    model = make_gpt2(config, of.type);
    name << "gpt2 " << config.layers << " layers, " << config.channels << " channels";
  } else if (kind == 2) {
    const int heads = draws.pick(1, 2);
    const LlamaConfig config{.vocabulary = draws.pick(3, 50),
                             .context = draws.pick(2, 12),
                             .layers = draws.pick(1, 4),
                             .heads = 2 * heads,
                             .kv_heads = heads,
                             .channels = 8 * heads,
                             .hidden = draws.pick(3, 30),
                             .tied = draws.chance(50),
                             .dropout = draws.chance(50) ? 0.2 : 0.0,
                             .attention_dropout = draws.chance(50) ? 0.3 : 0.0};
    model = make_llama(config, of.type);
    name << "llama " << config.layers << " layers" << (config.tied ? " tied" : "");
  } else {
    if (draws.chance(20)) of.type = DType::fp16;
    const int units = draws.pick(1, 8);
    model = random_chain(draws, of.type, groups, units);
    name << "chain of " << units;
  }
  of.model_name = name.str() + " " + std::string(name_of(of.type));
  of.model = std::make_shared<const Model>(std::move(*model));
  of.units = of.model->units();
}

inline EngineOptions draw_varied(Draws& draws, const EngineOptions& plain, int units, bool early_allowed) {
  EngineOptions options = plain;
  draw_strategy(draws, options.strategy, plain.mesh, units, early_allowed);
  options.debug.strict_order = draws.chance(15);
  options.debug.poison = draws.chance(70);
  options.debug.guards = draws.chance(30);
  if (draws.chance(25))  // some of what is not a use is late
    options.debug.delay_us = [salt = draws.pick(0, 1 << 20)](const Program& of,
                                                             const Instruction& instruction) {
      const PhiloxBlock mixed = random_block(
          static_cast<std::uint64_t>(salt), static_cast<std::uint64_t>(instruction.op),
          static_cast<std::uint64_t>(1000 * (of.flat_of(instruction) + 1) + instruction.microbatch + 1));
      return mixed[0] % 8 == 0 ? static_cast<double>(mixed[1] % 500) : 0.0;
    };
  return options;
}

inline std::vector<EngineProgram> programs_of(const RandomCase& of) {
  std::vector<EngineProgram> programs;
  for (const StepShape& shape : of.shapes) {
    ActivationSpec activations;
    if (of.model != nullptr) {
      activations = of.model->activations(shape.batch, 1);
      activations.batch_bytes = BatchBuffer(*of.model, shape.batch).logits;
    }
    programs.push_back(
        {.kind = shape.kind, .microbatches = shape.microbatches, .activations = std::move(activations)});
  }
  return programs;
}

inline void draw_events(Draws& draws, RandomCase& of, bool early) {
  const int units = static_cast<int>(of.units.size());
  const int data_ranks = of.plain.mesh.data_ranks();
  const int count = draws.pick(3, 7);
  const int change = draws.chance(50) ? draws.pick(1, count - 1) : -1;
  for (int k = 0; k < count; ++k) {
    if (k == change) of.events.push_back({.kind = Event::Kind::change_strategy});
    if (draws.chance(10)) of.events.push_back({.kind = Event::Kind::finish_updates});
    if (draws.chance(10)) of.events.push_back({.kind = Event::Kind::read});
    if (draws.chance(10)) of.events.push_back({.kind = Event::Kind::write, .at = draws.pick(0, 1000)});
    Event event{.program = draws.pick(0, of.shapes.count() - 1), .learning_rate = 0.001 * draws.pick(0, 20)};
    const StepShape& shape = of.shapes[event.program];
    event.at = draws.pick(0, shape.microbatches * data_ranks - 1);
    if (shape.kind == StepKind::train && !early) {
      if (draws.chance(15)) event.spoilt_unit = draws.pick(0, units - 1);
      if (draws.chance(12)) {
        event.kind = Event::Kind::abandon;
        event.uses = draws.pick(0, 2 * units * shape.microbatches);
      }
    }
    if (draws.chance(15) && (!early || shape.microbatches * data_ranks > 1))
      event.skipped_rank = draws.pick(0, data_ranks - 1);
    of.events.push_back(event);
  }
}

inline bool tied_over_ranks(const Layout& layout, const Partition& partition) {
  return std::ranges::any_of(holders_of(layout, partition),
                             [](const std::vector<int>& holders) { return holders.size() > 1; });
}

inline RandomCase draw_case(std::uint64_t seed) {
  Draws draws(seed);
  RandomCase of;
  of.seed = seed;
  int groups = draws.pick(1, 3);
  draw_model(draws, of, groups);
  if (of.model != nullptr) groups = static_cast<int>(of.model->groups.size());
  const int units = static_cast<int>(of.units.size());

  EngineOptions& plain = of.plain;
  plain.order = of.order;
  plain.mesh.pipeline = of.model == nullptr ? 1 : std::min(draws.among<int>({1, 1, 2, 2, 3, 4}), units);
  plain.mesh.shard = std::min(draws.among<int>({1, 2, 2, 3, 4}), 8 / plain.mesh.pipeline);
  plain.mesh.replicate = std::min(draws.among<int>({1, 1, 2, 3}), 8 / plain.mesh.pipeline / plain.mesh.shard);
  const std::int64_t longest = of.model == nullptr ? 1 : std::min<std::int64_t>(of.model->max_length, 9);
  const int trains = draws.pick(1, 2), evaluations = draws.pick(0, 2);
  for (int k = 0; k < trains + evaluations; ++k)
    of.shapes.push_back(
        {.kind = k < trains ? StepKind::train : StepKind::evaluate,
         .microbatches = draws.among<int>({1, 2, 3, 5}),
         .batch = {.sequences = draws.pick(1, 2), .length = draws.pick(1, static_cast<int>(longest))}});
  plain.programs = programs_of(of);
  const bool early = draws.chance(20);  // updated as gradients are reduced: nothing else is decided
  plain.clip.max_norm = !early && draws.chance(50) ? 0.01 * draws.pick(1, 100) : 0;
  if (!early && (of.type == DType::fp16 || draws.chance(15)))
    plain.loss_scaling =
        LossScaleOptions{.initial = std::ldexp(1.0, draws.pick(0, 18)), .growth_interval = 2};
  switch (draws.pick(1, 6)) {
    case 1:
      plain.optimizer.options = SgdOptions{.weight_decay = 0.01};
      break;
    case 2:
      plain.optimizer.options = SgdOptions{.momentum = 0.9, .nesterov = draws.chance(50)};
      break;
    case 3:
      plain.optimizer.options = AdamOptions{.weight_decay = 0.01};
      break;
    default:
      plain.optimizer.options = AdamWOptions{.weight_decay = 0.1};
  }
  if (draws.chance(30)) plain.optimizer.moment_type = DType::bf16;
  plain.optimizer.groups.clear();
  for (int group = 0; group < groups; ++group)
    plain.optimizer.groups.push_back({.name = "group" + std::to_string(group),
                                      .weight_decay = group == 1 ? std::optional(0.0) : std::nullopt,
                                      .learning_rate_factor = group == 2 ? 0.5 : 1.0});
  plain.parameter_norms = draws.chance(20);
  plain.overwrites_gradients = !draws.chance(10);
  plain.waits.deadline = std::chrono::seconds(60);
  plain.waits.waiting = Waiting::block;
  plain.disk_directory = std::filesystem::temp_directory_path();
  plain.strategy.reduce = draws.among<ReduceWhen>({ReduceWhen::each, ReduceWhen::last});
  Draws blocks(of.seed * 7 + 3);
  const int drawn = blocks.chance(50) ? draw_blocks(blocks, plain.strategy, plain.mesh) : 1;
  if (std::ranges::all_of(of.shapes, [&](const StepShape& shape) {
        return shape.kind == StepKind::evaluate || shape.microbatches * plain.mesh.data_ranks() % drawn == 0;
      }))
    plain.strategy.blocks = drawn;

  of.varied.push_back(draw_varied(draws, plain, units, early));
  EngineOptions resumed = of.varied[0];
  draw_free_choices(draws, resumed.strategy, plain.mesh, units, early);
  resumed.debug.strict_order = draws.chance(15);
  of.varied.push_back(resumed);
  for (EngineOptions& options : of.varied)  // the same choice, by its other name
    if (draws.chance(30) &&
        Strategy{.placements = options.strategy.placements, .reduce = ReduceWhen::automatic}.reduce_when(
            {.count = 2}) == plain.strategy.reduce)
      options.strategy.reduce = ReduceWhen::automatic;
  draw_events(draws, of, early);

  // The chunks of the run that resumes lie where they lay.
  Draws splits(of.seed * 17 + 9);
  const std::optional<PipelineSchedule> splitting = splitting_schedule(of.varied[0].strategy.pipeline.chunks);
  if (plain.mesh.pipeline > 1 && splitting &&
      std::ranges::all_of(
          plain.programs,
          [](const EngineProgram& program) { return splits_some(program.activations.units); }) &&
      splits.chance(40))
    for (EngineOptions& options : of.varied) options.strategy.pipeline.schedule = *splitting;

  // Sums over pipeline ranks that share a flat are made in an order of their own.
  const Layout layout(of.units, plain.mesh.shard, plain.mesh.replicate);
  if (tied_over_ranks(layout, Partition(units, plain.mesh.pipeline, of.varied[0].strategy.pipeline)))
    plain.strategy.pipeline = of.varied[0].strategy.pipeline;
  else
    plain.mesh.pipeline = 1;
  plain.strategy.prefetch = 0;
  plain.debug.strict_order = true;
  return of;
}

// ---- in words ----

inline std::string to_string(const EngineOptions& options) {
  return tessera::to_string(options.mesh) + " | " + strategy_in_words(options.strategy) + " strict " +
         std::to_string(options.debug.strict_order) + " poison " + std::to_string(options.debug.poison) +
         " guards " + std::to_string(options.debug.guards) + " delayed " +
         std::to_string(options.debug.delay_us != nullptr) + " budget " +
         std::to_string(options.budget.device_bytes);
}

inline std::string to_string(const RandomCase& of) {
  std::ostringstream text;
  text << "seed " << of.seed << ": " << of.model_name << ", " << of.plain.optimizer.name() << " moments "
       << name_of(of.plain.optimizer.moment_type) << " clip " << of.plain.clip.max_norm << " scaling "
       << (of.plain.loss_scaling ? of.plain.loss_scaling->initial : 0) << " overwrites_gradients "
       << of.plain.overwrites_gradients << "\n  programs";
  for (const StepShape& shape : of.shapes)
    text << " " << name_of(shape.kind) << " " << shape.microbatches << "x" << shape.batch.sequences << "x"
         << shape.batch.length;
  text << "\n  units";
  for (const UnitSpec& unit : of.units) {
    text << " [" << (unit.read_in_forward_only ? "forward only:" : "");
    for (const ParameterSpec& parameter : unit.parameters)
      text << " " << tessera::to_string(parameter.shape) << name_of(parameter.dtype)
           << (parameter.trainable ? "" : "!") << (parameter.tied_to.empty() ? "" : "=" + parameter.tied_to);
    text << "]";
  }
  if (!of.order.empty()) text << "\n  order";
  for (const Use& use : of.order)
    text << " " << name_of(use.pass) << " " << use.unit
         << (use.edge == UseEdge::open    ? " ("
             : use.edge == UseEdge::close ? " )"
                                          : "");
  text << "\n  events";
  for (const Event& event : of.events)
    text << " (" << static_cast<int>(event.kind) << " program " << event.program << " spoilt "
         << event.spoilt_unit << " skipped " << event.skipped_rank << " at " << event.at << " uses "
         << event.uses << ")";
  text << "\n  plain " << to_string(of.plain) << "\n  first " << to_string(of.varied[0]) << "\n  then  "
       << to_string(of.varied[1]);
  return text.str();
}

}  // namespace tessera::testing
