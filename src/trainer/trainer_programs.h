// Which programs a trainer's engine has, by index, and the options that make them.
#pragma once

#include "tessera/trainer.h"

namespace tessera {

// An evaluation runs in parts, of so many microbatches each and the last of `rest`, where that is above 0. A
// part is long enough to hide the bubble of a pipeline; that all have one program keeps the plan small.
struct EvaluationParts {
  explicit EvaluationParts(const TrainerOptions& options);
  int microbatches = 0;
  int rest = 0;
};

struct TrainerPrograms {
  explicit TrainerPrograms(const TrainerOptions& options);
  int train = 0;
  int evaluate = 1;
  int generate = -1;  // −1 where there is none
  int evaluate_rest = -1;
  std::vector<std::string> names;  // by program
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

// The engine's options with the trainer's programs. UsageError for a batch that the model cannot take.
EngineOptions engine_options(const Model& model, const TrainerOptions& options);

}  // namespace tessera
