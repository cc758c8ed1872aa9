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

// The most units, 0 to all, that can keep their gathered parameters from forward to backward within
// `budget_bytes` of device memory on every pipeline rank; −1 where not even 0 fits. Meaningful with sharded
// parameters only; specs' own resident_units are ignored.
int fit_resident_units(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                       std::int64_t budget_bytes);

// What becomes of each unit's activations, and what the arena of the pipeline rank that needs most then
// takes.
struct ChosenActivations {
  std::vector<ActivationChoice> units;
  std::int64_t arena_bytes = 0;
};

// None, selective and full, all of it on the device.
std::span<const ActivationChoice> recompute_choices();

// For each unit one of the choices `among`, so that every pipeline rank's plan is within `budget_bytes` of
// device memory and the least time is spent, as `cost` has it. The specs' own choices are ignored. A search,
// not a proof: see docs/memory.md. Where no choice fits, one that takes the least: its bytes are then above
// the budget.
ChosenActivations choose_activations(const Layout& layout, const Mesh& mesh,
                                     const std::vector<StepSpec>& specs, const CostModel& cost,
                                     std::int64_t budget_bytes,
                                     std::span<const ActivationChoice> among = recompute_choices());

// Offload::states_on_device where states are on host or disk: the share of the units with which every
// pipeline rank's plan is within `budget_bytes` of device memory and a step takes the least time, as `cost`
// has it; −1 where not even 0 fits. The specs' own share is ignored.
double choose_states_on_device(const Layout& layout, const Mesh& mesh, std::vector<StepSpec> specs,
                               const CostModel& cost, std::int64_t budget_bytes);

// What one rank may take, in bytes; 0: no limit.
struct MemoryBudget {
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;      // of the host's arena alone, also where the device is the CPU
  std::int64_t external_bytes = 0;  // what the embedder takes of device_bytes, besides the arena

  bool holds(const MemoryPlan& plan) const;
};

// Rows of "category  bytes" at the peak of a space, its total, and what the total consists of.
std::string describe_plan(const MemoryPlan& plan, Space space = Space::device);

// Why a plan does not fit, for a message: for each space that exceeds its budget the table and the bytes that
// are missing, then up to three changes of strategy that would fit, by the time that a step of all ranks is
// simulated to take with them, or that none does. A change is a higher stage, no resident units, states or
// parameters elsewhere, recomputation, no prefetch, or as few of these together as fit. `plan` is of one of
// the pipeline ranks. How long a step takes, compared to now, is said where `cost` has the passes'
// operations.
std::string explain_misfit(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                           const MemoryPlan& plan, const MemoryBudget& budget, const CostModel& cost = {});

}  // namespace tessera
