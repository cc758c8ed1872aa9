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
#include "tessera/sampling.h"

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
  bool generation = false;  // plans a program for logits(), and for generate() without a cache
  // Plans programs for extend() and generate(): keys and values of so many tokens stay from call to call
  // (Category::cache), and so many tokens of a prompt are read at once: at least least_rows(), to a multiple
  // of which prompt_rows is rounded up. 0 tokens: no cache. UsageError for more tokens than the model takes.
  std::int64_t cached_tokens = 0;
  std::int64_t prompt_rows = 256;
  // False: no training step is planned, and all parameters are frozen, so that a rank holds neither gradients
  // nor optimizer states. train_step() is then a UsageError.
  bool trains = true;
  // Plans a program for each of these shapes, of one microbatch on one rank, for losses().
  std::vector<BatchShape> scored = {};
  std::uint64_t seed = 1;  // of the initial weights, and of what modules draw in training
  // On CUDA: whether libraries are asked how much workspace they take on the GPU `engine.device_ordinal` of
  // this process, which has to be there. A Trainer always asks. False: the plan is for a GPU that is not
  // here, and the workspace of attention by cuDNN is the most that it takes on any.
  bool asks_gpu = false;
};

// How the microbatches of a training step are dealt to the data ranks.
inline Rounds rounds_of(const TrainerOptions& options) {
  return {.count = options.microbatches,
          .last_ranks = options.last_round_ranks,
          .blocks = options.engine.strategy.blocks};
}

// The fewest tokens of one sequence of which ranks along the tensor axis, tensor blocks and chunks have equal
// parts: so many are read where one is made.
std::int64_t least_rows(const Model& model, const TrainerOptions& options);

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

  // Writes microbatch `microbatch` of this rank to `batch`, on the host (Model::batch_bytes): the same bytes
  // where it is asked again within a step. Pipeline ranks
  // of one place in the rest of the mesh work on the same microbatches; those that read none are not asked.
  using Fetch = std::function<void(int microbatch, void* batch)>;
  StepResult train_step(double learning_rate, const Fetch& fetch);
  // Loss and weight over all microbatches of an evaluation; nothing else changes. It runs in parts of at most
  // 16 · mesh.pipeline microbatches, and 1,024; how many changes no bit. Between these `goes_on` is asked,
  // which must answer the same on all ranks: false ends it, with what was weighed so far and
  // SkipReason::abandoned.
  StepResult evaluate(const Fetch& fetch, const std::function<bool()>& goes_on = {});

  // Continues `prompt` by `count` tokens, the same on every rank (collective). Each is given to `goes_on`,
  // which must answer the same on all ranks: false ends the text there. With a cache, what it has of the
  // prompt's beginning is not read again, and prompt and count must fit it. Without one, each token is made
  // of the last batch.length ones before it. UsageError unless `cached_tokens` or `generation` was asked for,
  // for a prompt of no tokens, or with one that is not in the model's vocabulary, even if it is no longer in
  // the context; the trainer goes on after it. CommunicationError where the ranks do not give the same. Error
  // where logits are not numbers, as of weights that are none: no token follows from them.
  std::vector<std::int32_t> generate(std::vector<std::int32_t> prompt, int count, const Sampling& sampling,
                                     const std::function<bool(std::int32_t)>& goes_on = {});

  // With a cache: reads `tokens` behind those that it has, and returns the logits of the token that follows,
  // [vocabulary], the same on every rank (collective), numbers or not. UsageError as of generate(), and where
  // they do not fit.
  std::vector<float> extend(std::span<const std::int32_t> tokens);
  // Forgets all but the first `count` tokens of the cache. Every rank must do the same. UsageError unless 0 ≤
  // count ≤ cached().size().
  void rewind(std::int64_t count);
  // The tokens that were read; none when weights may have changed since (Engine::changes()).
  std::span<const std::int32_t> cached() const;

  // The logits of the token behind `tokens`, [vocabulary], the same on every rank (collective), numbers or
  // not. Of more than batch.length tokens the last count. UsageError as above; CommunicationError where the
  // ranks do not give the same tokens.
  std::vector<float> logits(std::span<const std::int32_t> tokens);

  // How many sequences losses() takes at once, of shape `shape` in TrainerOptions::scored: those of one
  // microbatch, of all data ranks, and of as many microbatches as the pipeline has ranks.
  std::int64_t scored_at_once(int shape) const;
  // The loss of every token of up to so many sequences, that is −ln of the probability that the model gives
  // the target: [sequences, length], 0 where the target is kNotCounted, in `losses`, the same on every rank
  // (collective). `inputs` and `targets` are of the same shape. Sequence s is row s mod shape.sequences of a
  // microbatch on any mesh, so that its bits do not depend on how many data ranks there are. UsageError for a
  // shape that does not exist, for sizes that do not fit, and for tokens that are not in the model's
  // vocabulary; CommunicationError where the ranks do not give the same.
  void losses(int shape, std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets,
              std::span<float> losses);

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
