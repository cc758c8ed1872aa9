// A model in training whose steps are recorded: how a recorded run with a Trainer goes.
#pragma once

#include <utility>

#include "tessera/trainer.h"
#include "tests/engine/random_model.h"
#include "tests/engine/recorded_runs.h"

namespace tessera::testing {

// Fills the batch of (step, microbatch, data rank).
using FillBatch = std::function<void(int step, int microbatch, int data_rank, void* batch)>;

class Student {
 public:
  Student(const Communicator& world, const std::shared_ptr<const Model>& model, const TrainerOptions& options,
          FillBatch fill)
      : trainer_(world, model, options), fill_(std::move(fill)), microbatches_(options.microbatches) {}

  Trainer& trainer() { return trainer_; }
  void train(int steps) {
    for (int k = 0; k < steps; ++k) history_.steps.push_back(trainer_.train_step(0.02 / (1 + step_), next()));
  }
  // A step of a chain of the tests' own in which one rank's gradients of a unit are infinite.
  void train_spoilt(UnitId unit, int rank) {
    if (trainer_.engine().rank() == rank) spoilt_unit = unit;
    train(1);
    spoilt_unit = -1;
  }
  void evaluate() { history_.steps.push_back(trainer_.evaluate(next())); }
  void abandon() {
    trainer_.engine().begin(StepKind::train, microbatches_);
    history_.steps.push_back(trainer_.engine().abandon());
  }
  History finish() {
    history_.weights = read_everything(trainer_.engine());
    return std::move(history_);
  }

 private:
  Trainer::Fetch next() {
    const int data_rank = trainer_.engine().options().mesh.data_rank(trainer_.engine().rank());
    return [this, step = step_++, data_rank](int microbatch, void* batch) {
      fill_(step, microbatch, data_rank, batch);
    };
  }

  Trainer trainer_;
  FillBatch fill_;
  int microbatches_;
  int step_ = 0;
  History history_;
};

using Lesson = std::function<void(Student&)>;

inline History teach(const std::shared_ptr<const Model>& model, const TrainerOptions& options,
                     const FillBatch& fill, const Lesson& lesson) {
  return on_ranks(options.engine.mesh.world(), [&](const Communicator& world) {
    Student student(world, model, options, fill);
    lesson(student);
    return student.finish();
  });
}

}  // namespace tessera::testing
