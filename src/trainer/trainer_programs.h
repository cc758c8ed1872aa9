// The programs of a trainer's engine, by index, and the options that make them.
#pragma once

#include "tessera/trainer.h"

namespace tessera {

// The name and spec of each program of a trainer's engine, and the index of each kind. The constructor throws
// UsageError for a batch that the model cannot take.
struct TrainerPrograms {
  TrainerPrograms(const Model& model, const TrainerOptions& options);
  std::vector<std::string> names;  // by program
  IdVector<EngineProgram> specs;
  int train = -1;  // −1 unless the trainer trains
  // An evaluation runs in parts of this many microbatches: enough to hide the bubble of a pipeline, and few,
  // so that the plan is small. If the last part has fewer, its program is `evaluate_rest`; else that is −1.
  int part_microbatches = 0;
  int evaluate = -1, evaluate_rest = -1;
  int generate = -1;              // −1 unless generation is asked for
  int prefill = -1, decode = -1;  // −1 unless a cache is asked for; they are one if their rows are as many
  // By place in TrainerOptions::scored. Each has as many microbatches as the pipeline has ranks, so that
  // these work at the same time.
  std::vector<int> scored = {};
  std::vector<BatchShape> shapes = {};  // by program
};

// The options of a trainer whose programs run on its GPU: asks_gpu says whether the machine has that GPU; the
// engine throws where it has not. Throws UnsupportedError naming the GPU where it cannot compute the model.
TrainerOptions for_gpu(TrainerOptions options, const Model& model);

// The part of a pass behind which the last module's losses, or logits, are there; −1: none.
int last_that_reads_batch(const UnitGraph& graph, Pass pass);

// The batch of generation: one sequence, as long as those of training.
BatchShape generation_shape(const TrainerOptions& options);

// Offsets in a program's batch buffer, after the model's batch: the LossTotal of the last module and then,
// for generation, a row of logits or, of a scored shape, the losses of all rows.
struct BatchBuffer {
  BatchBuffer(const Model& model, const BatchShape& shape);
  std::int64_t total = 0;  // offsets
  std::int64_t logits = 0, losses = 0;
};

// The units of the trainer's engine: the model's, all frozen unless the trainer trains.
std::vector<UnitSpec> units_of(const Model& model, const TrainerOptions& options);

// The options of the trainer's engine, with the trainer's programs.
EngineOptions engine_options(const Model& model, const TrainerOptions& options,
                             const TrainerPrograms& programs);

}  // namespace tessera
