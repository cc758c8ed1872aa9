// What [pipeline] means for a model: its cuts, and what of it the budget decides.
#pragma once

#include "src/cli/config.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::cli {

// `options` say everything else that the plan depends on. UsageError naming the key where the chain cannot be
// cut so, or where cuts = "balanced" finds none with which every rank keeps within run.device_memory.
Pipeline pipeline_of(const Config& config, const Model& model, TrainerOptions options);

}  // namespace tessera::cli
