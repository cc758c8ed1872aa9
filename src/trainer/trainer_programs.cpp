#include "src/trainer/trainer_programs.h"

#include <fmt/format.h>

#include "tessera/budget.h"

namespace tessera {
namespace {

void check_batch(const Model& model, const TrainerOptions& options) {
  const BatchShape& batch = options.batch;
  if (batch.sequences < 1)
    throw UsageError(fmt::format("batch.sequences is {}; it must be at least 1", batch.sequences));
  if (batch.length < 1 || batch.length > model.max_length)
    throw UsageError(fmt::format("batch.length is {}; model '{}' takes 1 to {}", batch.length, model.name,
                                 model.max_length));
  if (options.microbatches < 1 || options.evaluation_microbatches < 1)
    throw UsageError(fmt::format("microbatches is {} and evaluation_microbatches {}; both must be at least 1",
                                 options.microbatches, options.evaluation_microbatches));
  if (options.generation && model.vocabulary == 0)
    throw UsageError(fmt::format("generation: model '{}' has no tokens to generate", model.name));
}

}  // namespace

BatchShape generation_shape(const TrainerOptions& options) {
  return {.sequences = 1, .length = options.batch.length};
}

BatchBuffer::BatchBuffer(const Model& model, const BatchShape& shape) {
  constexpr std::int64_t kAlign = 16;
  total = model.batch_bytes ? (model.batch_bytes(shape) + kAlign - 1) / kAlign * kAlign : 0;
  logits = total + static_cast<std::int64_t>(sizeof(LossTotal));
}

EngineOptions engine_options(const Model& model, const TrainerOptions& options) {
  check_batch(model, options);
  EngineOptions engine = options.engine;
  const Target target(engine.threads_per_rank, engine.device);
  ActivationSpec batch = model.activations(options.batch, target);
  batch.batch_bytes = BatchBuffer(model, options.batch).logits;
  engine.programs = {
      {.kind = StepKind::train, .microbatches = options.microbatches, .activations = batch},
      {.kind = StepKind::evaluate, .microbatches = options.evaluation_microbatches, .activations = batch}};
  if (options.generation) {
    ActivationSpec sequence = model.activations(generation_shape(options), target);
    sequence.batch_bytes = BatchBuffer(model, generation_shape(options)).logits + 4 * model.vocabulary;
    engine.programs.push_back({.kind = StepKind::evaluate, .microbatches = 1, .activations = sequence});
  }
  engine.order.clear();
  engine.external_bytes = 0;
  return engine;
}

TrainerPlan plan_trainer(const Model& model, const TrainerOptions& options) {
  Layout layout(model.units(), options.engine.mesh.shard);
  PlannedPrograms planned =
      build_and_plan(layout, options.engine.mesh, step_specs(engine_options(model, options)));
  return {std::move(layout), std::move(planned.programs), std::move(planned.plan)};
}

int fit_resident_units(const Model& model, const TrainerOptions& options, std::int64_t budget_bytes) {
  return fit_resident_units(Layout(model.units(), options.engine.mesh.shard), options.engine.mesh,
                            step_specs(engine_options(model, options)), budget_bytes);
}

std::string memory_table(const Model& model, const TrainerOptions& options) {
  TrainerOptions alone = options;
  alone.engine.mesh = {};
  alone.engine.strategy.placements = {};
  alone.engine.strategy.resident_units = 0;
  const TrainerPlan replicated_plan = plan_trainer(model, alone);
  const TrainerPlan predicted_plan = plan_trainer(model, options);
  const SpacePlan& replicated = replicated_plan.memory.space(Space::device);
  const SpacePlan& predicted = predicted_plan.memory.space(Space::device);
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string text = fmt::format("{:<22}{:>16}{:>16}\n", "MiB a rank, at peak", "replicated", "predicted");
  const auto row = [&](std::string_view name, std::int64_t a, std::int64_t b) {
    if (a != 0 || b != 0) text += fmt::format("{:<22}{:>16.2f}{:>16.2f}\n", name, mib(a), mib(b));
  };
  for (int category = 0; category < kCategories; ++category)
    row(name_of(static_cast<Category>(category)), replicated.at_peak[static_cast<std::size_t>(category)],
        predicted.at_peak[static_cast<std::size_t>(category)]);
  row("lost between buffers", replicated.arena_bytes - replicated.live_peak_bytes,
      predicted.arena_bytes - predicted.live_peak_bytes);
  row("total", replicated.arena_bytes, predicted.arena_bytes);
  return text;
}

}  // namespace tessera
