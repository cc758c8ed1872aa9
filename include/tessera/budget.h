// Fitting a memory budget before a byte is taken: how many units can stay resident, which activations to make
// again, and what to change where nothing fits. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/memory_plan.h"
#include "tessera/program.h"
#include "tessera/simulate.h"
#include "tessera/step_spec.h"

namespace tessera {

// Builds the programs of a trainer, plans them in one arena, and links them to it: what an engine runs on the
// ranks with this coordinate along the pipeline axis.
struct PlannedPrograms {
  std::vector<Program> programs;
  MemoryPlan plan;
};
PlannedPrograms build_and_plan(const Layout& layout, const Mesh& mesh, std::span<const StepSpec> specs,
                               int pipeline_rank = 0);

// The same of every pipeline rank, by its coordinate.
std::vector<PlannedPrograms> plan_pipeline(const Layout& layout, const Mesh& mesh,
                                           std::span<const StepSpec> specs);

// What messages call the two budgets: a tool says what its user set.
struct BudgetNames {
  std::string device = "device_memory";
  std::string host = "host_memory";
};

// What one rank may take, in bytes; 0: no limit.
struct MemoryBudget {
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;      // of the host's arena alone, also where the device is the CPU
  std::int64_t external_bytes = 0;  // what the embedder takes of device_bytes, besides the arena
  BudgetNames names = {};

  bool holds(const MemoryPlan& plan) const { return missing_bytes(plan) == 0; }
  // By how much the plan exceeds it, device and host together.
  std::int64_t missing_bytes(const MemoryPlan& plan) const;
};

// The most units, 0 to all, that can keep their gathered parameters from forward to backward so that every
// pipeline rank keeps within the budget; −1 where no count does. Meaningful with sharded parameters only;
// specs' own resident_units are ignored. More units need not take more: with parameters off the device, one
// that stays is not brought again. Up to 32 units, no count above the one that is returned fits. Of more, it
// is found by bisection, and one unit more does not fit; where 0 does not fit either, −1 says so of 32
// counts, evenly spread.
int fit_resident_units(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                       const MemoryBudget& budget);

// What becomes of each unit's activations, and what the arenas of the pipeline rank that needs most then
// take.
struct ChosenActivations {
  std::vector<ActivationChoice> units;
  bool fits = false;             // the budget, on every pipeline rank
  std::int64_t arena_bytes = 0;  // on the device
  std::int64_t host_bytes = 0;
};

// None, selective and full, all of it on the device.
std::span<const ActivationChoice> recompute_choices();

// For each unit one of the choices `among`, so that every pipeline rank's plan keeps within the budget and
// the least time is spent, as `cost` has it. The specs' own choices are ignored. A search, not a proof: see
// docs/memory.md. Where no choice fits, one that exceeds the budget by the least, and of these one that takes
// little time.
ChosenActivations choose_activations(const Layout& layout, const Mesh& mesh,
                                     const std::vector<StepSpec>& specs, const CostModel& cost,
                                     const MemoryBudget& budget,
                                     std::span<const ActivationChoice> among = recompute_choices());

// Offload::states_on_device where states are on host or disk: the share of the units with which every
// pipeline rank's plan keeps within the budget and a step takes the least time, as `cost` has it; −1 where no
// share does. The specs' own share is ignored.
double choose_states_on_device(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                               const CostModel& cost, const MemoryBudget& budget);

// Rows of "category  bytes" at the peak of a space, its total, and what the total consists of.
std::string describe_plan(const MemoryPlan& plan, Space space = Space::device);

// Why plans do not fit, for a message: for each space that exceeds its budget the table and the bytes that
// are missing of the pipeline rank that lacks most, then up to three changes of strategy that would fit, by
// the time that a step of all ranks is simulated to take with them, or that none that was tried does. A
// change is a higher stage, another count of resident units, states, parameters or activations elsewhere, or
// back on the device, recomputation, fewer units on their way, no prefetch, or several of these together,
// none of which can stay away. Each is planned with all else as it is: what was chosen for each unit is not
// chosen again. `plans` are of all pipeline ranks, by their coordinate. How long a step takes, compared to
// now, is said where `cost` has the passes' operations.
std::string explain_misfit(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                           std::span<const MemoryPlan> plans, const MemoryBudget& budget,
                           const CostModel& cost = {});

}  // namespace tessera
