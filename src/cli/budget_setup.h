// What "auto" stands for where run.device_memory and run.host_memory decide: which activations are made again
// or wait on the host, which states stay on the device, which units stay gathered.
#pragma once

#include <cstdint>
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

}  // namespace tessera::cli
