#include "src/trainer/trainer_programs.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/libraries.h"
#include "tessera/budget.h"
#include "tessera/machine.h"
#include "tessera/prove.h"

namespace tessera {

std::int64_t least_rows(const Model& model, const TrainerOptions& options) {
  return std::int64_t{std::max(options.engine.mesh.tensor, model.tensor_blocks)} * options.exchange_chunks;
}

namespace {

void check_shape(const char* name, const Model& model, const BatchShape& batch) {
  if (batch.sequences < 1)
    throw UsageError(fmt::format("{}.sequences is {}; it must be at least 1", name, batch.sequences));
  if (batch.length < 1 || batch.length > model.max_length)
    throw UsageError(fmt::format("{}.length is {}; model '{}' takes 1 to {}", name, batch.length, model.name,
                                 model.max_length));
}

void check_batch(const Model& model, const TrainerOptions& options) {
  check_shape("batch", model, options.batch);
  for (const BatchShape& shape : options.scored) check_shape("scored", model, shape);
  if (!options.scored.empty() && model.vocabulary == 0)
    throw UsageError(fmt::format("scored: model '{}' has no tokens to score", model.name));
  if (options.microbatches < 1 || options.evaluation_microbatches < 1)
    throw UsageError(fmt::format("microbatches is {} and evaluation_microbatches {}; both must be at least 1",
                                 options.microbatches, options.evaluation_microbatches));
  if (model.tensor_blocks > 1 && options.engine.strategy.reduction == Reduction::native)
    throw UsageError(
        fmt::format("model '{}' has {} tensor blocks and strategy.reduction is native, whose sums have no "
                    "order; use exact",
                    model.name, model.tensor_blocks));
  if (options.generation && model.vocabulary == 0)
    throw UsageError(fmt::format("generation: model '{}' has no tokens to generate", model.name));
}

CostModel with_operations(CostModel rates, const Model& model, const TrainerOptions& options) {
  rates.part_flops = model.part_flops(options.batch, target_of(options));
  return rates;
}

}  // namespace

TrainerOptions for_gpu(TrainerOptions options, const Model& model) {
  options.asks_gpu = false;
  if (options.engine.device != DeviceType::cuda) return options;
  const std::vector<CudaGpu> gpus = read_cuda_machine().gpus;
  const auto ordinal = static_cast<std::size_t>(options.engine.device_ordinal);
  if (ordinal >= gpus.size()) return options;
  options.asks_gpu = true;
  const CudaGpu& gpu = gpus[ordinal];
  if (ComputeCapability{gpu.major, gpu.minor} >= model.least_gpu) return options;
  throw UnsupportedError(fmt::format(
      "GPU {} ({}) has compute capability {}.{}; model '{}' multiplies in fp8 (fp8_products, "
      "precision.products), which needs {}.{} or later",
      ordinal, gpu.name, gpu.major, gpu.minor, model.name, model.least_gpu.major, model.least_gpu.minor));
}

Target target_of(const TrainerOptions& options) {
  const EngineOptions& engine = options.engine;
  const bool here = engine.device == DeviceType::cuda && options.asks_gpu;
  return {engine.threads_per_rank, engine.device, engine.mesh.tensor, options.exchange_chunks,
          here ? engine.device_ordinal : -1};
}

BatchShape generation_shape(const TrainerOptions& options) {
  return {.sequences = 1, .length = options.batch.length};
}

BatchBuffer::BatchBuffer(const Model& model, const BatchShape& shape) {
  constexpr std::int64_t kAlign = 16;
  total = model.batch_bytes ? round_up(model.batch_bytes(shape), kAlign) : 0;
  logits = losses = total + static_cast<std::int64_t>(sizeof(LossTotal));
}

int last_that_reads_batch(const UnitGraph& graph, Pass pass) {
  int last = -1;
  for (int part = 0; part < graph.parts.count(); ++part)
    if (graph.parts[part].pass == pass && graph.parts[part].reads_value(SharedValue::batch)) last = part;
  return last;
}

namespace {

// Losses lie beside the batch.
void check_losses(const Model& model, const ActivationSpec& activations) {
  if (activations.units.empty()) return;
  for (const Pass pass : {Pass::forward, Pass::backward})
    if (last_that_reads_batch(activations.units.back(), pass) < 0)
      throw UsageError(
          fmt::format("model '{}': no part of {} of the last unit, '{}', reads the batch; the last that does "
                      "writes the losses (ModuleContext::total)",
                      model.name, name_of(pass), model.names.back()));
}

// A module that knows nothing of caches would see each token alone.
void check_keeps(const Model& model, const ActivationSpec& activations) {
  for (const UnitGraph& unit : activations.units)
    if (std::ranges::find(unit.values, Keep::cached, &ValueSpec::keep) != unit.values.end()) return;
  throw UsageError(fmt::format(
      "cached_tokens: no unit of model '{}' declares a value that is cached (Keep::cached)", model.name));
}

// How many tokens are read at a time.
struct CachedRows {
  CachedRows(const Model& model, const TrainerOptions& options) : decode(least_rows(model, options)) {
    const std::int64_t tokens = options.cached_tokens;
    if (tokens < 0 || tokens > model.max_length)
      throw UsageError(fmt::format("cached_tokens is {}; model '{}' takes 1 to {}, and 0 is no cache", tokens,
                                   model.name, model.max_length));
    if (options.prompt_rows < 1)
      throw UsageError(fmt::format("prompt_rows is {}; it must be at least 1", options.prompt_rows));
    if (tokens < decode)
      throw UsageError(
          fmt::format("cached_tokens is {}; it must be at least {}, the rows of which tensor ranks, blocks "
                      "and chunks have "
                      "equal parts",
                      tokens, decode));
    prefill = std::min(round_up(std::min(options.prompt_rows, tokens), decode), tokens / decode * decode);
  }
  std::int64_t decode = 1, prefill = 1;
};

}  // namespace

TrainerPrograms::TrainerPrograms(const Model& model, const TrainerOptions& options) {
  check_batch(model, options);
  const auto add_shaped = [&](std::string name, const BatchShape& shape, EngineProgram spec) {
    names.push_back(std::move(name));
    shapes.push_back(shape);
    specs.push_back(std::move(spec));
    return specs.count() - 1;
  };
  const auto add = [&](const char* name, EngineProgram spec) {
    return add_shaped(name, options.batch, std::move(spec));
  };
  const Target target = target_of(options);
  ActivationSpec batch = model.activations(options.batch, target);
  check_losses(model, batch);
  batch.batch_bytes = BatchBuffer(model, options.batch).logits;
  if (options.trains)
    train = add("train", {.kind = StepKind::train,
                          .microbatches = options.microbatches,
                          .last_round_ranks = options.last_round_ranks,
                          .activations = batch});
  const int all = options.evaluation_microbatches;
  constexpr int kPerPipelineRank = 16, kMost = 1024;  // of deep pipelines, whose plans grow with the square
  part_microbatches = std::clamp(kPerPipelineRank * options.engine.mesh.pipeline, 1, std::min(all, kMost));
  evaluate =
      add("evaluate", {.kind = StepKind::evaluate, .microbatches = part_microbatches, .activations = batch});
  if (options.generation) {
    ActivationSpec sequence = model.activations(generation_shape(options), target);
    sequence.batch_bytes = BatchBuffer(model, generation_shape(options)).logits + 4 * model.vocabulary;
    generate = add_shaped("generate", generation_shape(options),
                          {.kind = StepKind::evaluate, .microbatches = 1, .activations = sequence});
  }
  if (options.cached_tokens != 0) {
    const auto add_cached = [&](const char* name, std::int64_t rows) {
      const BatchShape shape = {.sequences = 1, .length = rows, .cached = options.cached_tokens};
      ActivationSpec read = model.activations(shape, target);
      check_keeps(model, read);
      read.batch_bytes = BatchBuffer(model, shape).logits + 4 * model.vocabulary;
      return add_shaped(name, shape,
                        {.kind = StepKind::evaluate, .microbatches = 1, .activations = std::move(read)});
    };
    const CachedRows rows(model, options);
    decode = add_cached("decode", rows.decode);
    prefill = rows.prefill == rows.decode ? decode : add_cached("prefill", rows.prefill);
  }
  if (const int rest = all % part_microbatches; rest > 0)
    evaluate_rest =
        add("evaluate the rest", {.kind = StepKind::evaluate, .microbatches = rest, .activations = batch});
  for (const BatchShape& shape : options.scored) {
    ActivationSpec activations = model.activations(shape, target);
    activations.batch_bytes = BatchBuffer(model, shape).losses + 4 * shape.tokens();
    scored.push_back(add_shaped(fmt::format("score {} × {}", shape.sequences, shape.length), shape,
                                {.kind = StepKind::evaluate,
                                 .microbatches = options.engine.mesh.pipeline,
                                 .activations = std::move(activations)}));
  }
}

std::vector<UnitSpec> units_of(const Model& model, const TrainerOptions& options) {
  std::vector<UnitSpec> units = model.units();
  if (options.trains) return units;
  for (UnitSpec& unit : units)
    for (ParameterSpec& parameter : unit.parameters) parameter.trainable = false;
  return units;
}

EngineOptions engine_options(const Model& model, const TrainerOptions& options,
                             const TrainerPrograms& programs) {
  EngineOptions engine = options.engine;
  engine.overwrites_gradients = true;  // as modules do
  engine.programs = programs.specs;
  engine.order.clear();
  engine.budget.external_bytes = 0;
  engine.compute = model.numerics(options.batch, target_of(options), options.seed);
  engine.cost = with_operations(std::move(engine.cost), model, options);
  if (engine.device != DeviceType::cpu)
    engine.open_libraries = [given = std::move(engine.open_libraries), device = engine.device](void* stream) {
      if (given) given(stream);
      kernels::open_libraries(device);
    };
  return engine;
}

namespace {

Layout layout_of(const Model& model, const TrainerOptions& options) {
  const Mesh& mesh = options.engine.mesh;
  return Layout(units_of(model, options), mesh.shard, mesh.replicate, mesh.tensor);
}

std::vector<StepSpec> specs_of(const Model& model, const TrainerOptions& options) {
  return step_specs(engine_options(model, options, TrainerPrograms(model, options)));
}

}  // namespace

TrainerPlan plan_trainer(const Model& model, const TrainerOptions& options, int pipeline_rank,
                         int data_rank) {
  TrainerPrograms programs(model, options);  // first: it names the model's field that is wrong
  Layout layout = layout_of(model, options);
  PlannedPrograms planned =
      build_and_plan(layout, options.engine.mesh, step_specs(engine_options(model, options, programs)),
                     pipeline_rank, data_rank);
  return {std::move(layout), std::move(planned.programs), std::move(planned.plan), std::move(programs.names),
          data_rank};
}

Numerics prove_trainer(const Model& model, const TrainerOptions& options,
                       std::span<const TrainerPlan> plans) {
  const std::size_t sets = first_data_ranks(specs_of(model, options)).size();
  const std::size_t wanted = sets * static_cast<std::size_t>(options.engine.mesh.pipeline);
  if (plans.size() != wanted)
    throw UsageError(fmt::format(
        "prove_trainer: there are {} plans, and mesh.pipeline is {}; it takes the {} of plan_pipeline()",
        plans.size(), options.engine.mesh.pipeline, wanted));
  std::vector<RankPrograms> ranks;
  for (const TrainerPlan& plan : plans) ranks.push_back({plan.programs, &plan.memory, plan.first_data_rank});
  return prove_engine(plans.front().layout, engine_options(model, options, TrainerPrograms(model, options)),
                      ranks);
}

int fit_resident_units(const Model& model, const TrainerOptions& options, const MemoryBudget& budget) {
  return fit_resident_units(layout_of(model, options), options.engine.mesh, specs_of(model, options), budget);
}

std::vector<ActivationChoice> choose_activations(const Model& model, const TrainerOptions& options,
                                                 const MemoryBudget& budget,
                                                 std::span<const ActivationChoice> among, CostModel rates) {
  return choose_activations(layout_of(model, options), options.engine.mesh, specs_of(model, options),
                            with_operations(std::move(rates), model, options), budget, among)
      .units;
}

double choose_states_on_device(const Model& model, const TrainerOptions& options, const MemoryBudget& budget,
                               CostModel rates) {
  return choose_states_on_device(layout_of(model, options), options.engine.mesh, specs_of(model, options),
                                 with_operations(std::move(rates), model, options), budget);
}

std::string explain_misfit(const Model& model, const TrainerOptions& options,
                           std::span<const TrainerPlan> plans) {
  const EngineOptions engine = engine_options(model, options, TrainerPrograms(model, options));
  const MemoryBudget& budget = engine.budget;
  if (std::ranges::all_of(plans, [&](const TrainerPlan& plan) { return budget.holds(plan.memory); }))
    return {};
  std::vector<MemoryPlan> memory;
  for (const TrainerPlan& plan : plans) memory.push_back(plan.memory);
  return explain_misfit(layout_of(model, options), engine.mesh, step_specs(engine), memory, budget,
                        engine.cost);
}

TrainerOptions on_one_rank(const TrainerOptions& options) {
  TrainerOptions alone = options;
  alone.last_round_ranks = 0;
  alone.engine.mesh = {};
  alone.exchange_chunks = 1;
  alone.engine.strategy.placements = {};
  alone.engine.strategy.resident_units = 0;
  alone.engine.strategy.state_over_replicas = false;
  alone.engine.strategy.parameters_over_replicas = false;
  alone.engine.strategy.blocks = 1;
  alone.engine.strategy.pipeline = {};
  alone.engine.strategy.keep_states_on_device();
  alone.engine.strategy.offload = {};
  return alone;
}

std::vector<TrainerPlan> plan_pipeline(const Model& model, const TrainerOptions& options) {
  const Layout layout = layout_of(model, options);
  const TrainerPrograms programs(model, options);
  std::vector<TrainerPlan> plans;
  for (PlannedPrograms& planned : tessera::plan_pipeline(
           layout, options.engine.mesh, step_specs(engine_options(model, options, programs))))
    plans.push_back({layout, std::move(planned.programs), std::move(planned.plan), programs.names,
                     planned.first_data_rank});
  return plans;
}

int fullest_plan(std::span<const TrainerPlan> plans, Space space) {
  const auto bytes = [&](const TrainerPlan& plan) { return plan.memory.space(space).arena_bytes; };
  return static_cast<int>(std::ranges::max_element(plans, {}, bytes) - plans.begin());
}

std::string memory_table(const Model& model, const TrainerOptions& options, int pipeline_rank) {
  return memory_table(plan_trainer(model, on_one_rank(options)), plan_trainer(model, options, pipeline_rank));
}

std::string memory_table(const TrainerPlan& alone, const TrainerPlan& predicted) {
  struct Column {
    std::string_view name;
    const SpacePlan& plan;
  };
  std::vector<Column> columns = {{"one rank alone", alone.memory.space(Space::device)}};
  for (const Space space : {Space::device, Space::host, Space::disk}) {
    const SpacePlan& plan = predicted.memory.space(space);
    if (space == Space::device || plan.arena_bytes > 0) columns.push_back({name_of(space), plan});
  }
  if (columns.size() == 2) columns[1].name = "predicted";  // all of it is on the device
  std::string text = fmt::format("{:<22}", "MiB a rank, at peak");
  for (const Column& column : columns) text += fmt::format("{:>16}", column.name);
  text += '\n';
  const auto row = [&](std::string_view name, const auto& bytes_of) {
    if (std::ranges::all_of(columns, [&](const Column& column) { return bytes_of(column.plan) == 0; }))
      return;
    text += fmt::format("{:<22}", name);
    for (const Column& column : columns)
      text += fmt::format("{:>16.2f}", static_cast<double>(bytes_of(column.plan)) / (1 << 20));
    text += '\n';
  };
  for (int category = 0; category < kCategories; ++category)
    row(name_of(static_cast<Category>(category)),
        [&](const SpacePlan& plan) { return plan.at_peak[category]; });
  row("lost between buffers", [](const SpacePlan& plan) { return plan.arena_bytes - plan.live_peak_bytes; });
  row("total", [](const SpacePlan& plan) { return plan.arena_bytes; });
  return text;
}

}  // namespace tessera
