// The programs of every rank of a mesh, planned and linked as they run.
#pragma once

#include <vector>

#include "src/simulate/folding.h"
#include "tessera/budget.h"
#include "tessera/prove.h"
#include "tessera/simulate.h"
#include "tessera/verify.h"

namespace tessera::testing {

struct WholeMesh {
  Layout layout;
  Mesh mesh;
  IdVector<Program> programs;     // by pipeline rank; behind them those of ranks that rest in the last round
  std::vector<MemoryPlan> plans;  // likewise
  IdVector<int> program_of_rank;

  WholeMesh(const std::vector<UnitSpec>& units, const Mesh& on, const StepSpec& spec)
      : layout(units, on.shard, on.replicate, on.tensor),
        mesh(on),
        program_of_rank(programs_of_ranks(on, first_data_ranks({&spec, 1}))) {
    for (PlannedPrograms& planned : plan_pipeline(layout, on, {&spec, 1})) {
      programs.push_back(std::move(planned.programs[0]));
      plans.push_back(std::move(planned.plan));
    }
  }

  WorldPrograms world() const {
    return {.mesh = mesh, .programs = programs, .program_of_rank = program_of_rank};
  }
  VerifyReport verified() const { return verified(world()); }
  // As where NCCL starts what communicates.
  VerifyReport verified_in_order() const {
    WorldPrograms in_order = world();
    in_order.starts_in_order = true;
    return verified(in_order);
  }
  VerifyReport proved() const { return prove(world(), layout); }
  // Without plans, which a spoilt program need not fit; for programs linked without one.
  VerifyReport verified_alone() const { return verify(world()); }
  WorldTimeline simulated(const CostModel& cost, Folding folding = Folding::folded) const {
    return simulate(world(), layout, cost, folding);
  }

 private:
  VerifyReport verified(const WorldPrograms& of) const {
    std::vector<PlannedProgram> planned;
    for (const MemoryPlan& plan : plans) planned.push_back({&plan, 0});
    return verify(of, planned);
  }
};

inline std::vector<Mesh> small_meshes() {
  std::vector<Mesh> meshes;
  for (int pipeline = 1; pipeline <= 8; ++pipeline)
    for (int replicate = 1; replicate <= 8; ++replicate)
      for (int shard = 1; shard <= 8; ++shard)
        if (pipeline * replicate * shard <= 8)
          meshes.push_back({.pipeline = pipeline, .replicate = replicate, .shard = shard});
  return meshes;
}

}  // namespace tessera::testing
