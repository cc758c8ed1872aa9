// Turns a Config into what the library runs: model, trainer options, schedule, samplers. Starts nothing.
#pragma once

#include <memory>
#include <optional>

#include "src/cli/dimensions.h"
#include "src/cli/kept_files.h"
#include "tessera/data.h"
#include "tessera/learning_rate.h"
#include "tessera/safetensors.h"
#include "tessera/trainer.h"

namespace tessera::cli {

struct Data;

// Everything that follows from the configuration and, if the run evaluates, from the amount of data to
// evaluate on. Takes no memory for training.
struct Setup {
  Config config;
  Dimensions dimensions;
  std::shared_ptr<const Model> model;
  TrainerOptions options;
  LearningRateSchedule schedule;
  SampleGrid grid;                        // for training steps
  SampleGrid evaluation_grid;             // for evaluations; an evaluation is its step 0
  std::shared_ptr<const Data> data = {};  // set if they were opened, because an evaluation ends with the data
  std::string not_opened = {};            // why the data could not be opened, if an evaluation would end with
                                          // them

  int world() const { return options.engine.mesh.world(); }
  std::int64_t tokens_per_step() const { return grid.samples_per_step() * options.batch.length; }
  // Whether a step copies anything between the device and host or disk.
  bool copies() const;
};

// Throws UsageError naming the keys if they contradict each other or the budget. If the data cannot be
// opened, it assumes that an evaluation has all the microbatches that the configuration asks for.
Setup make_setup(const Config& config);
// The same for a command that runs the model and trains nothing (TrainerOptions::trains).
Setup make_inference_setup(const Config& config);

// What an export writes: the weights with the model's config.json and the files that go with them, or the
// adapters alone with their adapter_config.json; by run.export_type, run.export_file_bytes and lora.merge.
struct ExportPlan {
  WeightMap map;
  SafetensorsExport options;
};
ExportPlan export_plan(const Setup& setup, const KeptFiles& files);

// The samples of a run. All ranks share them; any thread may read.
struct Data {
  TokenEncoding encoding = TokenEncoding::text;
  Sampler train;
  std::optional<Sampler> validation;
  std::string train_identity = {}, validation_identity = {};  // identity_of() of each; empty if there is none
  // The tokens in the files of data.train, and how many of them the masks let count. Without a mask both are
  // equal.
  std::int64_t train_tokens = 0, train_counted = 0;
};

// Parses a checkpoint's configuration; none if it is of another version.
std::optional<Config> stored_config(const std::string& configuration);

// Throws UsageError naming what differs if the model of `stored` computes something else. Shapes alone do not
// show that: for example, they do not show the number of heads.
void check_same_model(const Config& stored, const Setup& setup, const std::string& checkpoint);

// Throws UsageError if data.train has the same value as when the checkpoint was saved, but now names other
// tokens.
void check_same_data(const Config& stored, const std::string& stored_identity, const Setup& setup,
                     const Data& data);

// What has changed since `stored` and changes further training, in the form of differences().
std::vector<std::string> changes_since(const Config& stored, const Config& now);

// Opens and checks the files. Throws EnvironmentError or UsageError naming file and keys.
Data open_data(const Setup& setup);

// The prompt of the sample text as tokens of this data. `vocabulary` is the number of different tokens.
std::vector<std::int32_t> prompt_tokens(const std::string& prompt, const Data& data, std::int64_t vocabulary);

}  // namespace tessera::cli
