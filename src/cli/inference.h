// What a command needs that runs a model and trains nothing, such as `tessera evaluate`: its options, the
// configuration that follows from the weights, and ranks with the weights loaded.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "src/cli/setup.h"
#include "src/cli/text_tokens.h"
#include "tessera/communicator.h"

namespace tessera::cli {

struct InferenceArguments {
  std::string config;                 // path of a TOML file; empty: none
  std::vector<std::string> settings;  // "section.key=value", applied in order
  int ranks = 0;                      // number of ranks; 0: as the mesh says
  std::string weights;    // a Hugging Face folder, a file or index in one, a checkpoint, or the folder of a
                          // run's checkpoints; empty: as the configuration says
  std::string tokenizer;  // a tokenizer.json, or a folder that has one; empty: the one beside the weights
};

// Adds --weights, --tokenizer, --set and --ranks. The command itself takes the configuration.
void add_inference_options(CLI::App& command, InferenceArguments& arguments);

// A model to run, and where its weights are.
struct Inference {
  // It trains nothing, and its configuration keeps only the keys that matter for that; the others have their
  // defaults. Unless the user wrote them, run.length is the model's context,
  // precision.parameters is the type of the weights, and run.threads_per_rank the cores over the ranks.
  Setup setup;
  std::filesystem::path checkpoint = {};  // the checkpoint's own folder; empty: model.weights has the weights
  std::filesystem::path weights = {};     // as the user named them
  const char* named = "--weights";        // the argument or key that names them
  bool budgets_choose = false;  // the options follow from budgets, so that all ranks must have equal ones
  KeptFiles files = {};         // the tokenizer's and others, beside the weights
};

// Reads the configuration, completes it by what the weights tell, and checks it. Starts no ranks and loads
// nothing. Throws UsageError, naming the key or argument, for a model key that disagrees with the weights,
// for a `--set` of a key that matters in training only, and if nothing names the weights; EnvironmentError if
// a file cannot be read.
Inference make_inference(const InferenceArguments& arguments);

// The tokens of the model's text: those of --tokenizer, else of the tokenizer beside the weights. Without
// either, bytes are tokens if the vocabulary is 256; otherwise UsageError that says what to give. UsageError
// if the tokenizer has more tokens than the model.
TextTokens text_tokens(const InferenceArguments& arguments, const Inference& inference);

// One rank of a running model.
struct InferenceRank {
  Trainer& trainer;      // whose weights are loaded
  Communicator control;  // of all ranks, for what a command exchanges by itself
  bool first = true;     // rank 0: prints, and writes files
};

// Starts the ranks, which are threads or, where a launcher started several, processes. On each it makes a
// trainer, loads the weights and calls `body`. `options` are those of the setup, with what the command needs
// beside them: batch, programs. Prints to `notes` where the weights came from. Throws what a rank throws.
void run_inference(const Inference& inference, const TrainerOptions& options,
                   const std::function<void(const InferenceRank&)>& body, std::FILE* notes = stdout);

}  // namespace tessera::cli
