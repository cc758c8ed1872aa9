// Recorded runs of a chain whose compute is plain C++: placements, meshes, schedules, tiers, types,
// optimizers, steps that are skipped.
#include <filesystem>

#include "tessera/philox.h"
#include "tests/engine/recorded_student.h"

namespace tessera::testing {
namespace {

constexpr int kBatchWidth = 3;

// What a row names of a unit; ChainUnit has more, which follows from it.
struct UnitRow {
  std::vector<ParameterSpec> parameters;
  int out = 1;
  bool saves = true, remakes = true, forward_only = false, reads_batch = false;
};

// Eight units: parameters of one element and of no multiple of any world, of two groups, fp32 ones among
// others, a frozen one, a unit of nothing, and, where `tied`, a last one that shares the first one's weight.
std::vector<UnitRow> chain_rows(DType type, bool tied) {
  const auto fp32 = DType::fp32;
  return {
      {.parameters = {{.name = "embed.weight", .shape = {24, 5}, .dtype = type},
                      {.name = "embed.bias", .shape = {13}, .dtype = fp32, .group = 1}},
       .out = 6,
       .reads_batch = true},
      {.parameters = {{.name = "one.weight", .shape = {17, 5}, .dtype = type},
                      {.name = "one.scale", .shape = {}, .dtype = type, .group = 1}},
       .out = 6},
      {.parameters = {}, .out = 4, .remakes = false},
      {.parameters = {{.name = "three.weight", .shape = {300}, .dtype = type},
                      {.name = "three.frozen", .shape = {10}, .dtype = type, .trainable = false}},
       .out = 9},
      {.parameters = {{.name = "four.weight", .shape = {31, 3}, .dtype = type}},
       .out = 7,
       .saves = false,
       .remakes = false,
       .forward_only = true},
      {.parameters = {{.name = "five.gain", .shape = {65}, .dtype = fp32},
                      {.name = "five.shift", .shape = {33}, .dtype = type, .group = 1}},
       .out = 4,
       .saves = false,
       .reads_batch = true},
      {.parameters = {{.name = "six.one", .shape = {1}, .dtype = type, .group = 1},
                      {.name = "six.weight", .shape = {64}, .dtype = type}},
       .out = 5},
      {.parameters =
           {{.name = "head.weight", .shape = {24, 5}, .dtype = type, .tied_to = tied ? "embed.weight" : ""},
            {.name = "head.bias", .shape = {40}, .dtype = fp32, .group = 1}},
       .out = 2,
       .reads_batch = true}};
}

std::shared_ptr<const Model> make_chain(DType type, bool tied) {
  auto model = std::make_shared<Model>();
  model->name = "chain";
  int width = kBatchWidth;
  const std::vector<UnitRow> rows = chain_rows(type, tied);
  for (const UnitRow& row : rows) {
    const auto unit = static_cast<UnitId>(model->modules.size());
    model->names.push_back("unit" + std::to_string(unit));
    model->modules.push_back(
        std::make_unique<ChainModule>(ChainUnit{.name = model->names.back(),
                                                .unit = unit,
                                                .parameters = row.parameters,
                                                .forward_only = row.forward_only,
                                                .reads_batch = row.reads_batch,
                                                .saves = row.saves,
                                                .remakes = row.remakes,
                                                .in = std::exchange(width, row.out),
                                                .out = row.out,
                                                .first = unit == 0,
                                                .last = static_cast<std::size_t>(unit) + 1 == rows.size()},
                                      kBatchWidth));
  }
  model->batch_bytes = [](const BatchShape& shape) { return shape.tokens() * (kBatchWidth + 1) * 4; };
  model->max_length = 8;
  return model;
}

TrainerOptions chain_options() {
  TrainerOptions options;
  options.engine = toy_options(2, 2);
  options.engine.strategy.reduce = ReduceWhen::each;
  options.engine.debug.poison = true;
  options.engine.disk_directory = std::filesystem::temp_directory_path();
  options.batch = {.sequences = 2, .length = 3};
  options.microbatches = 3;
  options.evaluation_microbatches = 2;
  options.seed = 11;
  return options;
}

using Vary = std::function<void(EngineOptions&, Strategy&)>;

struct ChainRow {
  std::string name;
  Vary vary;
  DType type = DType::fp32;
  bool tied = true;
  int microbatches = 3;
  Lesson lesson = [](Student& student) { student.train(5); };
};

RecordedRun recorded(const ChainRow& row) {
  return {.name = "chain_" + row.name, .run = [row] {
            const auto model = make_chain(row.type, row.tied);
            TrainerOptions options = chain_options();
            options.microbatches = row.microbatches;
            row.vary(options.engine, options.engine.strategy);
            const std::int64_t values = model->batch_bytes(options.batch) / 4;
            const int ranks = options.engine.mesh.data_ranks();
            const auto fill = [=](int step, int microbatch, int data_rank, void* batch) {
              const int place = (step * row.microbatches + microbatch) * ranks + data_rank;
              const auto stream = static_cast<std::uint64_t>(place);
              for (std::int64_t k = 0; k < values; ++k)
                static_cast<float*>(batch)[k] =
                    static_cast<float>(uniform(3, stream, static_cast<std::uint64_t>(k))) - 0.5f;
            };
            return teach(model, options, fill, row.lesson);
          }};
}

Vary stage(int stage, int shard = 2, ReduceWhen reduce = ReduceWhen::each) {
  return [=](EngineOptions& engine, Strategy& strategy) {
    engine.mesh.shard = shard;
    strategy.placements = Placements::of_stage(stage);
    strategy.reduce = reduce;
  };
}

Vary also(const Vary& first, const Vary& second) {
  return [=](EngineOptions& engine, Strategy& strategy) {
    first(engine, strategy);
    second(engine, strategy);
  };
}

Vary mesh(int pipeline, int replicate, int shard, int at_stage) {
  return also(stage(at_stage, shard), [=](EngineOptions& engine, Strategy&) {
    engine.mesh.pipeline = pipeline;
    engine.mesh.replicate = replicate;
  });
}

Vary piped(int pipeline, int shard, int at_stage, const Pipeline& how) {
  return also(mesh(pipeline, 1, shard, at_stage),
              [=](EngineOptions&, Strategy& strategy) { strategy.pipeline = how; });
}

Pipeline scheduled(PipelineSchedule schedule, int chunks = 1, bool gather_once = false) {
  return {.schedule = schedule, .chunks = chunks, .cuts = {}, .gather_once = gather_once};
}

Vary offloaded(int at_stage, const Offload& offload, UpdateWhen update = UpdateWhen::decided) {
  return also(stage(at_stage), [=](EngineOptions&, Strategy& strategy) {
    strategy.offload = offload;
    strategy.update = update;
  });
}

Vary recomputed(int at_stage, Recompute recompute, int prefetch) {
  return also(stage(at_stage), [=](EngineOptions&, Strategy& strategy) {
    strategy.recompute = recompute;
    strategy.prefetch = prefetch;
  });
}

Vary optimized(const OptimizerOptions& options, int at_stage) {
  return also(stage(at_stage, 3),
              [=](EngineOptions& engine, Strategy&) { engine.optimizer.options = options; });
}

std::vector<ChainRow> placement_rows() {
  constexpr auto bf16 = DType::bf16;
  constexpr auto last = ReduceWhen::last;
  return {
      {"one_rank", stage(0, 1)},
      {"one_microbatch", stage(2), DType::fp32, true, 1},
      {"stage0", stage(0)},
      {"stage1", stage(1)},
      {"stage2", stage(2)},
      {"stage3", stage(3)},
      {"stage0_last", stage(0, 2, last)},
      {"stage1_last", stage(1, 2, last)},
      {"stage2_last", stage(2, 2, last)},
      {"stage3_last", stage(3, 2, last)},
      {"stage1_bf16", stage(1), bf16},
      {"stage3_bf16", stage(3), bf16},
      {"stage1_last_bf16", stage(1, 2, last), bf16},
      {"stage3_shard3_automatic", stage(3, 3, ReduceWhen::automatic), bf16, false},
      {"stage1_shard3_automatic", stage(1, 3, ReduceWhen::automatic), bf16, false},
      {"stage3_shard4_prefetch0",
       also(stage(3, 4), [](EngineOptions&, Strategy& strategy) { strategy.prefetch = 0; })},
      {"stage3_shard4_prefetch2",
       also(stage(3, 4), [](EngineOptions&, Strategy& strategy) { strategy.prefetch = 2; })},
      {"stage3_strict",
       also(stage(3), [](EngineOptions& engine, Strategy&) { engine.debug.strict_order = true; })},
      {"stage3_resident3",
       also(stage(3), [](EngineOptions&, Strategy& strategy) { strategy.resident_units = 3; })},
      {"stage3_resident_all_prefetch2", also(stage(3),
                                             [](EngineOptions&, Strategy& strategy) {
                                               strategy.resident_units = 8;
                                               strategy.prefetch = 2;
                                             })},
      {"parts_sharded", also(stage(0),
                             [](EngineOptions&, Strategy& strategy) {
                               strategy.placements.optimizer_state = Placement::sharded;
                               strategy.placements.gradients = Placement::sharded;
                             })},
      {"zero_gradients_stage2",
       also(stage(2), [](EngineOptions& engine, Strategy&) { engine.overwrites_gradients = false; })},
      {"two_threads_stage1",
       also(stage(1), [](EngineOptions& engine, Strategy&) { engine.threads_per_rank = 2; })},
  };
}

std::vector<ChainRow> mesh_rows() {
  using enum PipelineSchedule;
  constexpr auto bf16 = DType::bf16;
  const auto sliced = [](EngineOptions&, Strategy& strategy) { strategy.state_over_replicas = true; };
  const auto all_sliced = [](EngineOptions&, Strategy& strategy) {
    strategy.state_over_replicas = strategy.parameters_over_replicas = true;
  };
  const auto last = [](EngineOptions&, Strategy& strategy) { strategy.reduce = ReduceWhen::last; };
  return {
      {"replicas_stage0", mesh(1, 2, 2, 0)},
      {"replicas_stage3", mesh(1, 2, 2, 3)},
      {"replicas_stage1_states_sliced", also(mesh(1, 2, 2, 1), sliced)},
      {"replicas3_stage2_states_sliced", also(mesh(1, 3, 1, 2), sliced), bf16},
      {"replicas_stage3_states_sliced", also(mesh(1, 2, 2, 3), sliced)},
      {"replicas_stage3_all_sliced", also(mesh(1, 2, 2, 3), all_sliced)},
      {"replicas3_stage3_all_sliced_last", also(also(mesh(1, 3, 2, 3), all_sliced), last), bf16},
      {"1f1b_stage0", piped(2, 1, 0, {}), DType::fp32, false, 4},
      {"1f1b_stage3_cuts", piped(3, 2, 3, {.cuts = {2, 5}}), DType::fp32, false, 4},
      {"gpipe_stage2", piped(2, 2, 2, scheduled(gpipe)), DType::fp32, false, 4},
      {"gpipe4_stage1_tied", piped(4, 1, 1, scheduled(gpipe)), bf16, true, 3},
      {"interleaved_stage1", piped(2, 2, 1, scheduled(interleaved, 2)), DType::fp32, false, 4},
      {"interleaved4_stage3_tied", piped(4, 2, 3, scheduled(interleaved, 2)), DType::fp32, true, 4},
      {"looped_stage3", piped(2, 2, 3, scheduled(looped, 2)), DType::fp32, false, 4},
      {"looped_stage3_gather_once", piped(2, 2, 3, scheduled(looped, 4, true)), DType::fp32, false, 4},
      {"looped_stage2_tied", piped(2, 2, 2, scheduled(looped, 2)), bf16, true, 4},
      {"eight_ranks_stage3_all_sliced_tied", also(mesh(2, 2, 2, 3), all_sliced), bf16, true, 4},
      {"eight_ranks_stage1_states_sliced", also(mesh(2, 2, 2, 1), sliced), DType::fp32, false, 4},
  };
}

std::vector<ChainRow> tier_rows() {
  constexpr auto bf16 = DType::bf16;
  constexpr Recompute none = Recompute::none, selective = Recompute::selective, full = Recompute::full;
  const auto mixed = [](EngineOptions&, Strategy& strategy) {
    strategy.unit_activations = {{none, Space::host},      {full}, {none}, {selective, Space::host},
                                 {selective, Space::host}, {full}, {none}, {none}};
  };
  const auto replicas = [](EngineOptions& engine, Strategy&) { engine.mesh.replicate = 2; };
  const auto two_stages = [](EngineOptions& engine, Strategy&) { engine.mesh.pipeline = 2; };
  return {
      {"selective_stage1", recomputed(1, selective, 1)},
      {"full_stage3_prefetch2", recomputed(3, full, 2), bf16},
      {"full_stage3_prefetch0", recomputed(3, full, 0)},
      {"activations_by_unit", also(stage(3), mixed)},
      {"activations_on_host", offloaded(2, {.activations = Space::host})},
      {"activations_on_host_piped", also(offloaded(3, {.activations = Space::host}), two_stages), bf16,
       false},
      {"states_on_host", offloaded(2, {.states = Space::host})},
      {"states_on_host_stage0_bf16", offloaded(0, {.states = Space::host}), bf16},
      {"states_half_on_host", offloaded(1, {.states = Space::host, .states_on_device = 0.5}), bf16},
      {"states_on_disk_staged1", offloaded(3, {.states = Space::disk, .staged = 1})},
      {"states_and_parameters_on_host", offloaded(3, {.states = Space::host, .parameters = Space::host}),
       bf16},
      {"all_on_disk", offloaded(3, {.states = Space::disk,
                                    .states_on_device = 0.25,
                                    .parameters = Space::disk,
                                    .staged = 3,
                                    .activations = Space::host})},
      {"next_on_host", offloaded(2, {.states = Space::host}, UpdateWhen::next)},
      {"next_on_disk_replicas",
       also(offloaded(3, {.states = Space::disk, .states_on_device = 0.5}, UpdateWhen::next), replicas),
       bf16},
      {"reduced_stage3", offloaded(3, {}, UpdateWhen::reduced)},
      {"reduced_on_host_piped", also(offloaded(1, {.states = Space::host}, UpdateWhen::reduced), two_stages),
       bf16, false},
  };
}

std::vector<ChainRow> decision_rows() {
  constexpr auto bf16 = DType::bf16;
  const auto bf16_moments = [](EngineOptions& engine, Strategy&) {
    engine.optimizer.moment_type = DType::bf16;
  };
  const auto clipped = [](EngineOptions& engine, Strategy&) {
    engine.clip.max_norm = 0.01;
    engine.parameter_norms = true;
  };
  const auto scaled = [](EngineOptions& engine, Strategy&) {
    engine.loss_scaling = LossScaleOptions{.initial = 1024, .growth_interval = 2};
  };
  const Lesson spoilt = [](Student& student) {
    student.train(2);
    student.train_spoilt(3, 1);
    student.train(3);
  };
  const Lesson interrupted = [](Student& student) {
    student.train(1);
    student.evaluate();
    student.train(1);
    student.abandon();
    student.train(2);
    student.evaluate();
  };
  const Lesson all = [](Student& student) {
    student.train(2);
    student.train_spoilt(0, 0);
    student.evaluate();
    student.train(1);
    student.abandon();
    student.train(2);
  };
  return {
      {"adam", optimized(AdamOptions{.weight_decay = 0.05}, 1)},
      {"sgd", optimized(SgdOptions{.weight_decay = 0.01}, 3), bf16},
      {"sgd_momentum", optimized(SgdOptions{.momentum = 0.9}, 2)},
      {"sgd_nesterov_on_host",
       also(optimized(SgdOptions{.momentum = 0.9, .nesterov = true}, 2),
            [](EngineOptions&, Strategy& strategy) { strategy.offload.states = Space::host; })},
      {"bf16_moments", also(stage(2, 3), bf16_moments), bf16},
      {"bf16_moments_on_disk", also(offloaded(3, {.states = Space::disk}), bf16_moments), bf16},
      {"clipped", also(stage(1), clipped)},
      {"clipped_stage3_bf16", also(stage(3, 3), clipped), bf16},
      {"clipped_piped_tied", also(mesh(2, 1, 2, 1), clipped)},
      {"fp16_scaled_spoilt", also(stage(2), scaled), DType::fp16, true, 3, spoilt},
      {"fp16_scaled_clipped_stage3", also(also(stage(3), scaled), clipped), DType::fp16},
      {"spoilt_stage3", stage(3), DType::fp32, true, 3, spoilt},
      {"interrupted_stage1", stage(1), DType::fp32, true, 3, interrupted},
      {"interrupted_piped_stage3", mesh(2, 1, 2, 3), bf16, false, 4, interrupted},
      {"next_spoilt_and_interrupted",
       also(offloaded(2, {.states = Space::host, .states_on_device = 0.5}, UpdateWhen::next), clipped), bf16,
       true, 3, all},
      {"reduced_interrupted_by_evaluation", offloaded(2, {}, UpdateWhen::reduced), DType::fp32, true, 2,
       [](Student& student) {
         student.train(2);
         student.evaluate();
         student.train(2);
       }},
  };
}

}  // namespace

std::vector<RecordedRun> recorded_chain_runs() {
  std::vector<RecordedRun> runs;
  for (const auto& rows : {placement_rows(), mesh_rows(), tier_rows(), decision_rows()})
    for (const ChainRow& row : rows) runs.push_back(recorded(row));
  return runs;
}

}  // namespace tessera::testing
