// What "auto" stands for where run.device_memory and run.host_memory decide: which activations are made again
// or wait on the host, which states stay on the device, which units stay gathered.
#pragma once

#include <vector>

#include "src/cli/config.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::cli {

// What "auto" may choose for a unit; nothing where the configuration says it.
std::vector<ActivationChoice> allowed_choices(const Config& config);

// Sets in the options' strategy what is "auto" in the configuration; `options` say everything else. Where
// nothing is found that fits, what takes little memory: the engine then refuses it.
void choose_within_budget(const Config& config, const Model& model, TrainerOptions& options);

}  // namespace tessera::cli
