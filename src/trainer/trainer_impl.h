// What a trainer holds, and what its verbs have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "src/trainer/trainer_programs.h"
#include "tessera/trainer.h"

namespace tessera {

struct Trainer::Impl {
  Impl(Communicator world_in, std::shared_ptr<const Model> model_in, const TrainerOptions& options_in);

  void initialize();
  Engine::Fill initial_weights();
  StepResult run(int program, double learning_rate, const Fetch& fetch, bool continues = false);
  // All of a program but its end.
  void run_uses(int program, const StepTerms& terms, const Fetch& fetch);
  void run_use(const Instruction& use, const Fetch& fetch);
  bool leaves_nothing_on_host(int program) const;
  std::int64_t first_sequence(int microbatch) const;
  void bind(const Instruction& use, const UnitLease& lease, ModuleContext& context);
  const UnitGraph& graph_of(const Instruction& use) const {
    return programs.specs[running].activations.units[use.unit];
  }
  void collect(const Instruction& use, const ModuleContext& context);
  void check_scored(int index) const;
  std::int64_t microbatches_at_once() const {
    const Mesh& mesh = options.engine.mesh;
    return std::int64_t{mesh.pipeline} * mesh.data_ranks();
  }
  // Gives `losses` what data ranks have of microbatches.
  void bring_losses(std::span<const float> own, std::span<float> losses_of_all);
  // The logits that a rank with this place along the tensor axis makes.
  ElementRange logits_of(int place) const {
    const int blocks = std::max(model->tensor_blocks, options.engine.mesh.tensor);
    const std::int64_t each = padded_part(std::max(model->token_rows, model->vocabulary), blocks) *
                              (blocks / options.engine.mesh.tensor);
    return {.begin = std::min(place * each, model->vocabulary),
            .end = std::min((place + 1) * each, model->vocabulary)};
  }
  // Of what needs the program that `generation` plans, before ranks wait for each other.
  void check_planned(const char* call) const;
  // Reads text[cached.size() ..] behind the cache; the logits of what follows are in `logits` if not null.
  void read(std::span<const std::int32_t> text, float* logits_of_next);
  void forget_if_changed();
  // Gives all ranks what some have made of a row of logits.
  void bring_logits(std::vector<float>& row);
  // Ends a call on all ranks that not all of them made alike.
  void agree(const char* call, const char* argument, std::uint64_t value);
  // That ranks gave the same tokens, then that the model has these: none is refused in the middle of a
  // program, and none by some of the ranks only.
  // The first `known` of them are compared only.
  void agree_on_tokens(const char* call, const char* argument, std::span<const std::int32_t> tokens,
                       std::size_t known = 0);

  std::shared_ptr<const Model> model;
  TrainerOptions options;
  TrainerPrograms programs;
  IdVector<Initial> initials;  // by parameter
  Communicator world;
  Engine engine;
  Communicator results = world.duplicate("results");  // what was asked for, and what one rank has of it
  int running = 0;                                    // by place in `programs`
  BatchShape shape;                                   // of the running program
  std::vector<int> uploaded;                          // of its microbatches, in their order so far
  IdVector<std::vector<int>> captured_uploads;        // [program] the same of the step that was captured
  float* logits = nullptr;                            // on the host
  std::int64_t logits_row = 0;
  std::int64_t position = 0;         // of the batch's first token, where there is a cache
  std::vector<std::int32_t> cached;  // the tokens that it has
  std::int64_t cached_at = 0;        // Engine::changes() when it read them
  float* losses = nullptr;           // on the host, of this rank's microbatches
  std::vector<std::byte> staging;    // a batch on the host
  // The pointers of the running use; sized once for the unit with the most parameters, and values.
  std::vector<void*> parameters, gradients;
  IdVector<void*> values;
  std::vector<float> betas;
};

}  // namespace tessera
