// Turns a Config into what the library runs: model, trainer options, schedule, samplers. Starts nothing.
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "src/cli/config.h"
#include "tessera/data.h"
#include "tessera/learning_rate.h"
#include "tessera/model.h"
#include "tessera/safetensors.h"
#include "tessera/trainer.h"

namespace tessera::cli {

using Dimensions = std::variant<Gpt2Config, LlamaConfig>;

struct Data;

// Everything that follows from the configuration and, where it evaluates, from how much data there are to
// evaluate on: no memory is taken.
struct Setup {
  Config config;
  Dimensions dimensions;
  std::shared_ptr<const Model> model;
  TrainerOptions options;
  Schedule schedule;
  SampleGrid grid;                        // of training steps
  SampleGrid evaluation_grid;             // an evaluation is its step 0
  std::shared_ptr<const Data> data = {};  // where they were opened: an evaluation ends with them
  std::string not_opened = {};            // why they could not be, where an evaluation would end with them

  int world() const { return options.engine.mesh.world(); }
  std::int64_t tokens_per_step() const { return grid.samples_per_step() * options.batch.length; }
  // Whether a step copies anything between the device and elsewhere.
  bool copies() const;
};

// UsageError naming the keys where they contradict each other or the budget. An evaluation of a number of
// microbatches is taken to have them all where the data cannot be opened.
Setup make_setup(const Config& config);

// What run.export_type and run.export_file_bytes say, and the model's config.json.
SafetensorsExport export_options(const Setup& setup);

// The samples of a run. Shared by all ranks; reading is safe from any thread.
struct Data {
  TokenEncoding encoding = TokenEncoding::text;
  Sampler train;
  std::optional<Sampler> validation;
  std::string train_identity = {}, validation_identity = {};  // identity_of(); empty where there is none
};

// A checkpoint's configuration; none where it is of another version.
std::optional<Config> stored_config(const std::string& configuration);

// UsageError naming what differs where `stored` is of a model that computes something else: shapes alone do
// not tell heads, say.
void check_same_model(const Config& stored, const Setup& setup, const std::string& checkpoint);

// UsageError where the same data.train names other tokens than when the checkpoint was saved.
void check_same_data(const Config& stored, const std::string& stored_identity, const Setup& setup,
                     const Data& data);

// What of `stored` is otherwise now and changes what comes next, as differences().
std::vector<std::string> changes_since(const Config& stored, const Config& now);

// Opens and checks the files. EnvironmentError or UsageError naming file and keys.
Data open_data(const Setup& setup);

// What the sample text begins with, in tokens of this data, of which there are `vocabulary`.
std::vector<std::int32_t> prompt_tokens(const std::string& prompt, const Data& data, std::int64_t vocabulary);

}  // namespace tessera::cli
