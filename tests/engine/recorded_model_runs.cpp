// Recorded runs of the models that come with Tessera, whose products and attention have other bits on other
// processors.
#include "tessera/philox.h"
#include "tests/engine/matrix.h"
#include "tests/engine/recorded_student.h"

namespace tessera::testing {
namespace {

RecordedRun recorded(const std::string& name, RunConfig run, bool evaluates = false) {
  run.steps = 3;
  run.poison = true;
  return {.name = name, .portable = false, .run = [=] {
            const auto model = std::make_shared<const Model>(small_model(run));
            TrainerOptions options = trainer_options(run);
            options.engine.waits.waiting = Waiting::block;
            const auto fill = [=](int step, int microbatch, int data_rank, void* batch) {
              fetch_samples(data_rank, data_ranks(run), run.microbatches, step, model->vocabulary,
                            options.batch)(microbatch, batch);
            };
            return teach(model, options, fill, [=](Student& student) {
              student.train(run.steps);
              if (!evaluates) return;
              student.evaluate();
              student.train(1);
            });
          }};
}

// The first value of a row decides its class; inputs come in a part padded to 256 bytes.
RecordedRun recorded_mlp(const std::string& name, const Mesh& mesh, int stage) {
  return {.name = name, .portable = false, .run = [=] {
            const auto model = std::make_shared<const Model>(
                make_mlp({.inputs = 5, .hidden = {24, 17}, .classes = 3}, DType::fp32));
            TrainerOptions options;
            options.engine = toy_options(mesh.shard, stage);
            options.engine.mesh = mesh;
            options.engine.strategy.reduce = ReduceWhen::automatic;
            options.batch = {.sequences = 8, .length = 1};
            options.microbatches = 2;
            const auto fill = [&](int step, int microbatch, int data_rank, void* batch) {
              const int place = (step * 8 + microbatch) * 8 + data_rank;
              const auto stream = static_cast<std::uint64_t>(place);
              auto* inputs = static_cast<float*>(batch);
              auto* classes = reinterpret_cast<std::int32_t*>(static_cast<std::byte*>(batch) + 256);
              for (std::uint64_t k = 0; k < 40; ++k)
                inputs[k] = static_cast<float>(uniform(9, stream, k)) - 0.5f;
              for (std::uint64_t row = 0; row < 8; ++row)
                classes[row] = static_cast<std::int32_t>(3 * uniform(9, stream, row * 5));
            };
            return teach(model, options, fill, [](Student& student) {
              student.train(3);
              student.evaluate();
            });
          }};
}

}  // namespace

std::vector<RecordedRun> recorded_model_runs() {
  constexpr auto llama = Family::llama;
  constexpr auto bf16 = DType::bf16;
  using enum PipelineSchedule;
  return {
      recorded("gpt2_one_rank", {}),
      recorded("gpt2_stage1", {.world = 2, .stage = 1}),
      recorded("gpt2_stage3_bf16", {.world = 2, .stage = 3, .dtype = bf16, .prefetch = 2}, true),
      recorded("gpt2_tied_pipeline", {.world = 2, .pipeline = 2, .stage = 2, .microbatches = 4}),
      recorded("gpt2_selective", {.world = 2, .stage = 2, .recompute = Recompute::selective}, true),
      recorded("llama_stage0", {.family = llama, .world = 2}),
      recorded("llama_stage3_full", {.family = llama,
                                     .world = 2,
                                     .stage = 3,
                                     .dtype = bf16,
                                     .resident_units = 2,
                                     .recompute = Recompute::full}),
      recorded("llama_interleaved", {.family = llama,
                                     .world = 2,
                                     .pipeline = 2,
                                     .schedule = {.schedule = interleaved, .chunks = 2, .cuts = {}},
                                     .stage = 3,
                                     .reduce = ReduceWhen::last,
                                     .microbatches = 4}),
      recorded("llama_all_sliced", {.family = llama,
                                    .world = 2,
                                    .replicate = 2,
                                    .state_over_replicas = true,
                                    .parameters_over_replicas = true,
                                    .stage = 3,
                                    .dtype = bf16}),
      recorded("llama_next_on_disk",
               {.family = llama,
                .world = 2,
                .stage = 2,
                .offload = {.states = Space::disk, .states_on_device = 0.5, .activations = Space::host},
                .update = UpdateWhen::next},
               true),
      recorded_mlp("mlp_stage0", {.shard = 2}, 0),
      recorded_mlp("mlp_pipeline_stage3", {.pipeline = 2, .shard = 2}, 3),
  };
}

}  // namespace tessera::testing
