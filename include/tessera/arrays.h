// For trainers that keep every kind of parameter in one array, [layers, ...], and index it by layer: the
// engine for such arrays, and the tables of base pointers that the trainer reads. Code that computes
// base + layer · stride works unchanged.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/engine.h"

namespace tessera {

// One array of the trainer's. Stacked over units it has equal parts, one behind the other: part k is a
// parameter of unit first_unit + k.
struct ArraySpec {
  std::string name = {};   // unique; empty: "array<i>", by its place in the list
  std::int64_t numel = 0;  // of all parts
  int units = 0;           // number of parts; 0: one, and the array is not stacked
  UnitId first_unit = 0;
  UnitId also_in = 0;  // a later unit that reads the whole array, too (tied); 0: none
  DType dtype = DType::fp32;
  bool frozen = false;
  int group = 0;  // of the optimizer
};

// The units that arrays make, "unit0", "unit1", …, with their parameters in the order of the arrays. An array
// that is not stacked is a parameter of its own name; of a stacked one, part k is "<name>.<k>"; where
// another unit reads it, it is "<name>.tied" there. UsageError, naming the array, for a size, number or name
// that cannot be, and for units that no array is in.
std::vector<UnitSpec> units_of(std::span<const ArraySpec> arrays);

// An Engine whose parameters are parts of arrays. Gradients begin at zero, so a trainer adds to them.
//
//   ArrayEngine model(world, {{.name = "embed", .numel = V * C, .also_in = L + 1},
//                             {.name = "weight", .numel = L * C * C, .units = L, .first_unit = 1}, …},
//                             options);
//   model.bind(parameters, gradients);             // float* tables, one entry for each array
//   model.engine().begin(StepKind::train);
//   model.enter(2, Pass::forward);                 // parameters[1] + 1 * C * C is there, other arrays are
//   null … StepResult result = model.step_mean(rate, loss);
//
// Calls as those of Engine: on one thread, equal on all ranks, failing alike.
class ArrayEngine {
 public:
  // Collective. `options` may not say overwrites_gradients, and order only as Engine takes it.
  ArrayEngine(Communicator world, std::vector<ArraySpec> arrays, EngineOptions options = {});
  ~ArrayEngine();
  ArrayEngine(const ArrayEngine&) = delete;
  ArrayEngine& operator=(const ArrayEngine&) = delete;

  // For all other verbs. A unit that was entered is a lease of it: leave() it before step(), abandon(), use()
  // and skip(). The calls below do that themselves.
  Engine& engine();
  std::span<const ArraySpec> arrays() const;

  // Names the trainer's tables: entry i is the base of array i. From now on enter() sets them, and until then
  // they are null. Empty `gradients`: for evaluation only. UsageError where an array is not fp32, naming it
  // and its type, where a table has another number of entries than there are arrays, and where address space
  // for the bases of stacked arrays could not be reserved (a limit such as `ulimit -v`).
  void bind(std::span<float*> parameters, std::span<float*> gradients);
  // The same for arrays of any type, each entry a pointer to elements of its array's.
  void bind(std::span<void*> parameters, std::span<void*> gradients);

  // Ends the use before, if any, and begins the next one, which must be this (Engine::use). Then parameters
  // of the arrays that the unit reads are bases, and in backward gradients, too, of those that are trainable;
  // all other entries are null. Of a stacked array only the entered unit's part may be touched.
  void enter(UnitId unit, Pass pass);
  // Ends the use that enter() began, if any. All entries are null.
  void leave();

  // All arrays, one behind the other, as the trainer's own memory has them, in fp32: sets parameters, or
  // gives them. Collective, between steps; write() is given the same on all ranks (Engine::write).
  void write(std::span<const float> all);
  void read(std::span<float> all);
  std::int64_t numel() const;  // of all arrays together

  [[nodiscard]] StepResult step(const StepInputs& inputs);
  // Ends a step whose losses are means: gradients are sums over this rank's microbatches of the gradient of
  // each one's mean loss, and `loss` is the sum of these means. The model then learns from the mean over all
  // microbatches of all ranks, so these have the same number of samples. Also ends an evaluation.
  [[nodiscard]] StepResult step_mean(double learning_rate, double loss);
  StepResult abandon();
  void end_evaluation();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
