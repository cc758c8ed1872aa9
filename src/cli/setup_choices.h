// Choices that a configuration leaves to the tool: values of "auto" that depend on run.device_memory and
// run.host_memory, and the cuts of a pipeline.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cli/config.h"
#include "tessera/budget.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::cli {

// The choices that "auto" may make for a unit; empty if the configuration makes the choice.
std::vector<ActivationChoice> allowed_choices(const Config& config);

// Whether "auto" chooses which states stay on the device. False if all states are there.
bool chooses_states(const Config& config);

// The bytes by which the pipeline rank that exceeds the budget most exceeds it.
std::int64_t missing_bytes(const Model& model, const TrainerOptions& options, const MemoryBudget& budget);

// Sets in the options' strategy everything that is "auto" in the configuration; `options` have everything
// else. If nothing is found that fits, sets what takes little memory; the engine then refuses it.
void choose_within_budget(const Config& config, const Model& model, TrainerOptions& options);

// The pipeline of a configuration. `options` have everything else that the plan depends on. `among` are the
// choices that are still to be made for each unit's activations; empty if `options` have them. If cuts =
// "balanced" finds no cuts with which every rank keeps within the budget, the result has those with the
// fewest missing bytes. Throws UsageError naming the key if the chain cannot be cut in this way.
Pipeline pipeline_of(const Config& config, const Model& model, TrainerOptions options,
                     std::span<const ActivationChoice> among);

}  // namespace tessera::cli
