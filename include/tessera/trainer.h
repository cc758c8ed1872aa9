// Floor 7: trains a Model on an Engine: forward and backward of every module, in the program's order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/budget.h"
#include "tessera/engine.h"
#include "tessera/module.h"

namespace tessera {

struct TrainerOptions {
  // Mesh, strategy, optimizer, clipping, budget and so on; `programs`, `order` and
  // `budget.external_bytes` are the trainer's own.
  EngineOptions engine;
  BatchShape batch;  // one microbatch on one rank
  // A training step has so many rounds of microbatches, and so many data ranks have one in the last, as in
  // EngineProgram.
  int microbatches = 1;
  int last_round_ranks = 0;
  int evaluation_microbatches = 1;  // per evaluation
  // With several tensor ranks: modules cut what these exchange into so many chunks of rows. One chunk travels
  // while the products of the one before run. Of each chunk a rank has consecutive rows, so that the bits
  // differ from those of another count (docs/numerics.md). Products are smaller, and backward keeps more. 1:
  // each exchange is one. UsageError where the rows of a microbatch cannot be cut so, and of modules that do
  // not.
  int exchange_chunks = 1;
  bool generation = false;  // plans a program for generate()
  std::uint64_t seed = 1;   // of the initial weights, and of what modules draw in training
};

// How the microbatches of a training step are dealt to the data ranks.
inline Rounds rounds_of(const TrainerOptions& options) {
  return {.count = options.microbatches,
          .last_ranks = options.last_round_ranks,
          .blocks = options.engine.strategy.blocks};
}

// The programs a trainer with these options runs on the ranks with this coordinate along the pipeline axis
// and this data rank, without a rank or a byte: for `tessera plan`.
struct TrainerPlan {
  Layout layout;
  IdVector<Program> programs;
  MemoryPlan memory;
  std::vector<std::string> names;  // of the programs: "train", "evaluate" (a part of an evaluation), …
  int first_data_rank = 0;         // the first place along the shard axis whose ranks run them
};
TrainerPlan plan_trainer(const Model& model, const TrainerOptions& options, int pipeline_rank = 0,
                         int data_rank = 0);

// Proves the plans that plan_pipeline() gives, and says what decides the bits of their steps: prove_engine().
Numerics prove_trainer(const Model& model, const TrainerOptions& options, std::span<const TrainerPlan> plans);

// The same training on one rank, nothing sharded, all steps alike: what a sharded plan is compared with.
TrainerOptions on_one_rank(const TrainerOptions& options);

// What modules compute on with these options.
Target target_of(const TrainerOptions& options);

// The plans of all places along the pipeline axis, by place: first of the ranks that have a microbatch in
// every round, then, where there are any, of those that rest in the last. And which of them has the largest
// arena of a space, the first of equals.
std::vector<TrainerPlan> plan_pipeline(const Model& model, const TrainerOptions& options);
int fullest_plan(std::span<const TrainerPlan> plans, Space space = Space::device);

// The most units that can stay resident within the budget, see fit_resident_units() in budget.h; −1 where no
// count fits.
int fit_resident_units(const Model& model, const TrainerOptions& options, const MemoryBudget& budget);

// What becomes of each unit's activations so that the plan keeps within the budget and the least is made
// again, see choose_activations() in budget.h; where nothing fits, so that the least is missing. Time by
// `rates`, whose operations by unit are filled in here.
std::vector<ActivationChoice> choose_activations(
    const Model& model, const TrainerOptions& options, const MemoryBudget& budget,
    std::span<const ActivationChoice> among = recompute_choices(), CostModel rates = {});

// The share of the units that keep their optimizer states on the device, see choose_states_on_device() in
// budget.h; −1 where nothing fits.
double choose_states_on_device(const Model& model, const TrainerOptions& options, const MemoryBudget& budget,
                               CostModel rates = {});

// Why `plans`, of all places along the pipeline axis, exceed a budget of the options, and what would fit; see
// explain_misfit() in tessera/budget.h. Empty where none does.
std::string explain_misfit(const Model& model, const TrainerOptions& options,
                           std::span<const TrainerPlan> plans);

// Text for a person: categories by row; what a rank that trains alone would hold on its device, nothing
// sharded, beside what the plan gives it, in each space where it has anything.
std::string memory_table(const Model& model, const TrainerOptions& options, int pipeline_rank = 0);
// The same of plans that are there already.
std::string memory_table(const TrainerPlan& alone, const TrainerPlan& predicted);

class Trainer {
 public:
  // Collective. Plans, takes memory and initialises the weights. Every rank gives an equal model and equal
  // options: of what neither parameters nor programs show, a dropout say, no rank knows the others'. The
  // ranks of a process may share `model`, whose modules keep no state of their own.
  Trainer(Communicator world, std::shared_ptr<const Model> model, const TrainerOptions& options);
  ~Trainer();

  // Writes microbatch `microbatch` of this rank to `batch`, on the host (Model::batch_bytes). Pipeline ranks
  // of one place in the rest of the mesh work on the same microbatches; those that read none are not asked.
  using Fetch = std::function<void(int microbatch, void* batch)>;
  StepResult train_step(double learning_rate, const Fetch& fetch);
  // Loss and weight over all microbatches of an evaluation; nothing else changes. It runs in parts of at most
  // 16 · mesh.pipeline microbatches, and 1,024; how many changes no bit. Between these `goes_on` is asked,
  // which must answer the same on all ranks: false ends it, with what was weighed so far and
  // SkipReason::abandoned.
  StepResult evaluate(const Fetch& fetch, const std::function<bool()>& goes_on = {});

  // Continues `prompt` by `count` tokens, the same on every rank (collective). temperature 0 takes the most
  // likely token; otherwise drawn from the seed. UsageError unless `generation` was asked for, for a prompt
  // of no tokens or with one that is not in the model's vocabulary, be it too far back to count; the trainer
  // goes on after it. CommunicationError where the ranks do not give the same. Error where logits are not
  // numbers, as of weights that are none: no token follows from them.
  std::vector<std::int32_t> generate(std::vector<std::int32_t> prompt, int count, double temperature,
                                     std::uint64_t seed, const std::function<void(std::int32_t)>& each = {});

  // The logits of the token behind `tokens`, [vocabulary], the same on every rank (collective), numbers or
  // not. Of more than batch.length tokens the last count. UsageError as above; CommunicationError where the
  // ranks do not give the same tokens.
  std::vector<float> logits(std::span<const std::int32_t> tokens);

  Engine& engine();
  const Model& model() const;
  // What Engine::initialize() was given when the trainer was made: the values that its weights began with.
  // Valid as long as the trainer.
  Engine::Fill initial_weights() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
