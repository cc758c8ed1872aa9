// Fits a run into a memory budget before any memory is allocated: how many units can stay resident, which
// activations to recompute, and what to change where nothing fits. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/cost_model.h"
#include "tessera/id_vector.h"
#include "tessera/memory_budget.h"
#include "tessera/memory_plan.h"
#include "tessera/program.h"
#include "tessera/step_spec.h"

namespace tessera {

// Builds the programs of a trainer, plans their memory together, and links them to the plan. These are the
// programs that an engine runs on the ranks with this coordinate along the pipeline axis and this data rank:
// one for each spec and, behind them, one of kind `finish` for each training spec with UpdateWhen::next.
struct PlannedPrograms {
  IdVector<Program> programs;
  MemoryPlan plan;
  int first_data_rank = 0;  // the first place along the shard axis whose ranks run them
};
PlannedPrograms build_and_plan(const Layout& layout, const Mesh& mesh, std::span<const StepSpec> specs,
                               int pipeline_rank = 0, int data_rank = 0);

// Builds and plans the programs of every rank: for each of first_data_ranks(specs) those of all pipeline
// ranks, by their coordinate. programs_of_ranks() says who runs which. It ends with the first rank whose plan
// exceeds the budget. All of the machine's cores work at it, and the result is the same for any number.
std::vector<PlannedPrograms> plan_pipeline(const Layout& layout, const Mesh& mesh,
                                           std::span<const StepSpec> specs, const MemoryBudget& budget = {});

// The most units, from 0 to all, that can keep their gathered parameters from forward to backward while every
// pipeline rank keeps within the budget. −1 where no count fits. Meaningful with sharded parameters only. The
// specs' own resident_units are ignored.
// More resident units do not always take more memory: with parameters off the device, a resident unit is not
// brought again. So with up to 32 units every count is tried, and no count above the result fits. With more
// units the result is found by bisection: one unit more does not fit. If 0 does not fit, 32 evenly spread
// counts are tried, and −1 means that none of those fits.
int fit_resident_units(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                       const MemoryBudget& budget);

// The choice for each unit's activations, and the arenas of the pipeline rank that then needs most.
struct ChosenActivations {
  IdVector<ActivationChoice> units;
  bool fits = false;             // every pipeline rank keeps within the budget
  std::int64_t arena_bytes = 0;  // on the device
  std::int64_t host_bytes = 0;
};

// Recompute none, selective and full, with everything on the device.
std::span<const ActivationChoice> recompute_choices();

// Picks one of the choices `among` for each unit or, where one of these keeps everything, a set of values
// that are made again (ActivationChoice::again), so that every pipeline rank's plan keeps within the budget
// and, by `cost`, the step takes the least time. The specs' own choices are ignored. This is a search, and it
// may miss the best answer: see docs/memory.md. Where nothing fits, the result exceeds the budget by the
// least that was found and, among such, takes little time.
ChosenActivations choose_activations(const Layout& layout, const Mesh& mesh,
                                     const std::vector<StepSpec>& specs, const CostModel& cost,
                                     const MemoryBudget& budget,
                                     std::span<const ActivationChoice> among = recompute_choices());

// Chooses Offload::states_on_device where states are on host or disk: the share of the units with which every
// pipeline rank's plan keeps within the budget and, by `cost`, a step takes the least time. −1 where no share
// fits. The specs' own share is ignored.
double choose_states_on_device(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                               const CostModel& cost, const MemoryBudget& budget);

// A table of "category bytes" at the peak of a space, the bytes that are lost between buffers, and the
// arena's total.
std::string describe_plan(const MemoryPlan& plan, Space space = Space::device);

// Explains, for an error message, why plans do not fit. For each space that exceeds its budget it gives
// describe_plan()'s table and the missing bytes of the pipeline rank that lacks most. Then it lists up to
// three changes of strategy that would fit, ordered by the simulated time of a step of all ranks, or says
// that no change that was tried fits. A change is one or several of these: a higher stage, another count of
// resident units, states, a share of them, parameters or activations moved elsewhere or back to the device,
// recomputation, updates when decided, one staged flat, no pipeline.gather_once, no prefetch. A change of
// several has no part that could be left out. Each is planned with everything else as it is; the choices for
// each unit are not made again. `plans` are in the order of plan_pipeline(). The time of a step relative to
// now is given where `cost` has the passes' operations.
std::string explain_misfit(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                           std::span<const MemoryPlan> plans, const MemoryBudget& budget,
                           const CostModel& cost = {});

}  // namespace tessera
