// Which programs a trainer's engine has, by index, and the options that make them.
#pragma once

#include "tessera/trainer.h"

namespace tessera {

// The programs of a trainer's engine: what each is called and made of, and which is which. UsageError for a
// batch that the model cannot take.
struct TrainerPrograms {
  TrainerPrograms(const Model& model, const TrainerOptions& options);
  std::vector<std::string> names;  // by program
  std::vector<ProgramSpec> specs;
  int train = -1;
  // An evaluation runs in parts of so many microbatches each: enough to hide the bubble of a pipeline, and
  // few, so that the plan is small. The last part's program is `evaluate_rest` where it has fewer.
  int part_microbatches = 0;
  int evaluate = -1, evaluate_rest = -1;
  int generate = -1;  // where it is asked for
};

// One sequence, as long as those of training.
BatchShape generation_shape(const TrainerOptions& options);

// What lies behind the model's batch in the program's batch buffer: what the last module's losses add up to,
// then, for generation, a row of logits.
struct BatchBuffer {
  BatchBuffer(const Model& model, const BatchShape& shape);
  std::int64_t total = 0;  // offsets
  std::int64_t logits = 0;
};

// The engine's options with the trainer's programs.
EngineOptions engine_options(const Model& model, const TrainerOptions& options,
                             const TrainerPrograms& programs);

}  // namespace tessera
