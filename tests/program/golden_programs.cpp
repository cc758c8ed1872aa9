#include "tests/program/golden_programs.h"

#include <functional>
#include <utility>

#include "tests/program/small_graph.h"
#include "tests/program/small_models.h"

namespace tessera::testing {
namespace {

// Two equal units on two shards, until it is changed.
struct Case {
  std::vector<UnitSpec> model = chain(2, 64);
  Mesh mesh = {.shard = 2};
  StepSpec spec;

  Case() { spec.activations = activations(2); }
  void take(std::vector<UnitSpec> other) {
    model = std::move(other);
    spec.activations = activations(static_cast<int>(model.size()));
  }
  std::vector<Program> build() const {
    const Layout layout(model, mesh.shard, mesh.replicate, mesh.tensor);
    std::vector<Program> programs;
    for (const int data_rank : first_data_ranks({&spec, 1}))
      for (int rank = 0; rank < mesh.pipeline; ++rank)
        programs.push_back(build_step(layout, mesh, spec, rank, data_rank));
    return programs;
  }
};

GoldenPrograms golden(const std::string& name, const std::function<void(Case&)>& change) {
  Case of;
  change(of);
  return {name, of.build()};
}

GoldenPrograms stage(int stage) {
  return golden("stage_" + std::to_string(stage), [&](Case& of) {
    of.spec.strategy.placements = Placements::of_stage(stage);
    of.spec.microbatches = 2;
  });
}

void shard_everything(Case& of) { of.spec.strategy.placements = Placements::of_stage(3); }

GoldenPrograms update_next() {
  Case of;
  shard_everything(of);
  of.spec.strategy.offload.states = Space::host;
  of.spec.strategy.update = UpdateWhen::next;
  std::vector<Program> programs = of.build();
  of.spec.kind = StepKind::finish;
  programs.push_back(of.build().front());
  return {"update_next", std::move(programs)};
}

// The first unit runs around the second, which runs twice.
std::vector<Use> nested_uses() {
  using enum Pass;
  using enum UseEdge;
  return {{0, forward, open},  {1, forward},  {1, forward},  {0, forward, close},
          {0, backward, open}, {1, backward}, {1, backward}, {0, backward, close}};
}

}  // namespace

std::vector<GoldenPrograms> golden_programs() {
  std::vector<GoldenPrograms> all = {stage(0), stage(1), stage(2), stage(3)};
  all.push_back(golden("pipeline_1f1b", [](Case& of) {
    of.take(chain(4, 64));
    of.mesh = {.pipeline = 2};
    of.spec.microbatches = 3;
  }));
  all.push_back(golden("tensor", [](Case& of) {
    of.model = split_chain(2);
    of.mesh = {.shard = 2, .tensor = 2};
    of.spec.activations.units = {small_split_graph(2), small_split_graph(2)};
    of.spec.strategy.recompute = Recompute::selective;
    shard_everything(of);
  }));
  all.push_back(golden("tensor_pieces", [](Case& of) {
    of.model = split_chain(2);
    of.mesh = {.tensor = 2};
    of.spec.activations.units = {InPieces(2, 2).graph, InPieces(2, 2).graph};
  }));
  all.push_back(golden("last_round_of_one", [](Case& of) {
    shard_everything(of);
    of.spec.microbatches = 2;
    of.spec.last_round_ranks = 1;
  }));
  // Rounds of 2 over blocks of 3: the second round ends one block and begins another.
  all.push_back(golden("blocks", [](Case& of) {
    shard_everything(of);
    of.spec.microbatches = 3;
    of.spec.strategy.blocks = 2;
  }));
  all.push_back(golden("pipeline_interleaved", [](Case& of) {
    of.take(chain(4, 64));
    of.mesh = {.pipeline = 2};
    of.spec.microbatches = 2;
    of.spec.strategy.pipeline.schedule = PipelineSchedule::interleaved;
    of.spec.strategy.pipeline.chunks = 2;
  }));
  all.push_back(golden("pipeline_zb_v", [](Case& of) {
    of.take(chain(4, 64));
    of.mesh = {.pipeline = 2};
    of.spec.microbatches = 3;
    of.spec.activations = small_graphs(4);
    of.spec.strategy.pipeline = {.schedule = PipelineSchedule::zb_v, .chunks = 2, .cuts = {}};
  }));
  all.push_back(golden("replicas_state_sliced", [](Case& of) {
    shard_everything(of);
    of.mesh = {.replicate = 2, .shard = 2};
    of.spec.strategy.state_over_replicas = true;
  }));
  all.push_back(golden("replicas_parameters_sliced", [](Case& of) {
    shard_everything(of);
    of.mesh = {.replicate = 2, .shard = 2};
    of.spec.strategy.state_over_replicas = of.spec.strategy.parameters_over_replicas = true;
  }));
  all.push_back(golden("offload_host", [](Case& of) {
    shard_everything(of);
    of.spec.microbatches = 2;
    of.spec.strategy.offload = {.states = Space::host, .parameters = Space::host, .activations = Space::host};
  }));
  all.push_back(golden("offload_disk", [](Case& of) {
    shard_everything(of);
    of.spec.strategy.offload = {.states = Space::disk, .parameters = Space::disk};
  }));
  all.push_back(update_next());
  all.push_back(golden("update_reduced", [](Case& of) {
    shard_everything(of);
    of.spec.strategy.update = UpdateWhen::reduced;
  }));
  all.push_back(golden("tied_embedding", [](Case& of) {
    of.take(tied_model(2));
    of.mesh = {.pipeline = 2, .shard = 2};
    of.spec.strategy.placements = Placements::of_stage(1);
    of.spec.parameter_norms = true;
  }));
  for (const Recompute recompute : {Recompute::selective, Recompute::full})
    all.push_back(golden("recompute_" + std::string(name_of(recompute)), [&](Case& of) {
      of.take(tied_model(1));
      shard_everything(of);
      of.spec.strategy.recompute = recompute;
    }));
  all.push_back(golden("parts", [](Case& of) {
    of.spec.activations = small_graphs(2);
    of.spec.strategy.recompute = Recompute::selective;
    of.spec.strategy.offload.activations = Space::host;
  }));
  all.push_back(golden("evaluation", [](Case& of) {
    shard_everything(of);
    of.spec.kind = StepKind::evaluate;
    of.spec.microbatches = 2;
  }));
  all.push_back(golden("nested_uses", [](Case& of) {
    shard_everything(of);
    of.spec.order = nested_uses();
    of.spec.activations = {};
    of.spec.zero_gradients = true;
  }));
  return all;
}

}  // namespace tessera::testing
