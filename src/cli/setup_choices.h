// What a configuration leaves to the tool: what "auto" stands for where run.device_memory and run.host_memory
// decide, and where a pipeline is cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cli/config.h"
#include "tessera/budget.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::cli {

// What "auto" may choose for a unit; nothing where the configuration says it.
std::vector<ActivationChoice> allowed_choices(const Config& config);

// Whether "auto" says which states stay on the device; where all are there, nothing does.
bool chooses_states(const Config& config);

// By how much the pipeline rank that exceeds the budget by most does.
std::int64_t missing_bytes(const Model& model, const TrainerOptions& options, const MemoryBudget& budget);

// Sets in the options' strategy what is "auto" in the configuration; `options` say everything else. Where
// nothing is found that fits, what takes little memory: the engine then refuses it.
void choose_within_budget(const Config& config, const Model& model, TrainerOptions& options);

// `options` say everything else that the plan depends on. UsageError naming the key where the chain cannot be
// cut so. Where cuts = "balanced" finds none with which every rank keeps within the budget, they are those
// with which the least is missing. `among` is what is still to be chosen from for each unit's activations;
// empty where `options` say that, too.
Pipeline pipeline_of(const Config& config, const Model& model, TrainerOptions options,
                     std::span<const ActivationChoice> among);

}  // namespace tessera::cli
