// What [pipeline] means for a model: its cuts, and what of it the budget decides.
#pragma once

#include <span>

#include "src/cli/config.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::cli {

// `options` say everything else that the plan depends on. UsageError naming the key where the chain cannot be
// cut so. Where cuts = "balanced" finds none with which every rank keeps within the budget, they are those
// with which the least is missing. `among` is what is still to be chosen from for each unit's activations;
// empty where `options` say that, too.
Pipeline pipeline_of(const Config& config, const Model& model, TrainerOptions options,
                     std::span<const ActivationChoice> among);

}  // namespace tessera::cli
