// Which programs a trainer's engine has, by index, and the options that make them.
#pragma once

#include "tessera/trainer.h"

namespace tessera {

inline constexpr int kTrainProgram = 0;
inline constexpr int kEvaluateProgram = 1;
inline constexpr int kGenerateProgram = 2;  // only where generation is asked for

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
