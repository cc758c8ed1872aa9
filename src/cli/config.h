// The configuration of a run: plain values, read from TOML and `--set`. One table of keys (config_keys.cpp)
// drives parsing, messages and docs/configuration.md. Builds nothing and opens nothing but the file itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/error.h"
#include "tessera/mesh.h"
#include "tessera/optimizer.h"

namespace tessera::cli {

// Stands for "auto" in whole numbers that the tool may also choose.
inline constexpr std::int64_t kAuto = -1;

// Fields have the names of their keys. Meaning, unit and allowed values are in the table of keys.
struct ModelConfig {
  std::string family = "gpt2";
  std::string preset = "gpt2-tiny";
  std::int64_t vocabulary = 0, context = 0, layers = 0, heads = 0, channels = 0;  // 0: the preset's value
  std::int64_t kv_heads = 0, hidden = 0;                                          // likewise, as the next 6
  double rope_theta = 0.0, rope_scaling = 0.0, norm_epsilon = 0.0;
  double rope_low_freq_factor = 0.0, rope_high_freq_factor = 0.0;
  std::int64_t rope_original_context = 0;
  double dropout = 0.0, attention_dropout = 0.0;
  std::int64_t pad_vocabulary_to = 1;
  std::int64_t logits_memory = 0;
  std::string tied = "preset";
  std::string weights = {};
  bool allow_nonfinite_weights = false;
  std::string adapter = {};
  std::vector<std::string> frozen = {};
};

struct LoraConfig {
  std::int64_t rank = 0;
  double alpha = 0.0;
  std::vector<std::string> targets = {};
  bool merge = false;
};

struct DataConfig {
  std::string train;
  std::string validation;
  double validation_fraction = 0.05;
  std::int64_t seed = 1;
};

struct MeshConfig {
  std::int64_t shard = 1, pipeline = 1, replicate = 1, tensor = 1;
};

struct StrategyConfig {
  std::int64_t stage = 3;
  std::string reduce = "each";
  std::string reduction = "exact";
  std::string update = "decided";
  std::int64_t prefetch = 1;
  std::string recompute = "none";
  std::int64_t resident_units = 0;
  bool sequence_parallel = true;
  std::int64_t exchange_chunks = 1;
  bool state_over_replicas = false;
  bool parameters_over_replicas = false;
  bool strict_order = false;
};

struct NumericsConfig {
  std::int64_t blocks = 1;
  std::int64_t tensor_blocks = 1;
};

struct PipelineConfig {
  std::string schedule = "1f1b";
  std::int64_t chunks = 1;
  std::string cuts = "balanced";
  std::string gather_once = "false";
};

struct OffloadConfig {
  std::string states = "device", parameters = "device", activations = "device";
  double states_on_device = 0.0;
  std::int64_t staged = 2;
  std::string directory = ".";
};

struct PrecisionConfig {
  std::string parameters = "bf16";
  std::string products = "parameters";
  std::string moments = "fp32";
  bool loss_scaling = false;
  double initial_scale = 65536.0;
  std::int64_t growth_interval = 2000;
};

// The tool's defaults. Some differ from the library's.
std::vector<OptimizerOptions> optimizer_defaults();

struct OptimizerConfig {
  std::string kind = "adamw";
  // The options of every optimizer, in the order of optimizer_names(). A key sets the field of the options of
  // `kind` or, if these have no such field, of the first options that have it.
  std::vector<OptimizerOptions> options = optimizer_defaults();
  double clip = 1.0;
  std::vector<std::pair<std::string, double>> rates = {};  // pattern, factor

  OptimizerOptions& chosen();
  const OptimizerOptions& chosen() const;
};

struct ScheduleConfig {
  std::string kind = "cosine";
  double learning_rate = 1e-3;
  std::int64_t warmup_steps = 0, total_steps = 0, decay_steps = 0;
  double final_factor = 0.1;
  std::int64_t base_batch = 0;
  std::string batch_scaling = "none";
};

struct RunConfig {
  std::int64_t steps = 100;
  double seconds = 0.0;
  std::int64_t sequences = 4, length = 256, microbatches = 1, microbatches_per_step = 0;
  std::int64_t evaluate_every = 0, evaluation_microbatches = 8;
  std::string checkpoint;
  std::int64_t checkpoint_every = 0, checkpoint_keep = 2;
  bool checkpoint_async = true;
  std::string export_path;  // run.export; `export` is a keyword of C++
  std::string export_type = "fp32";
  std::int64_t export_file_bytes = 0;
  std::string resume = "false";
  std::int64_t seed = 1;
  std::string device = "cpu";
  bool graphs = true;
  double peak_tflops = 0.0;
  std::int64_t threads_per_rank = 1;
  bool pin = true;
  std::int64_t device_memory = 0, host_memory = 0;
  double deadline = 60.0;
  std::string metrics, tensorboard, trace;
  std::int64_t trace_steps = 2;
  std::string sample_prompt = "The ";
  std::int64_t sample_tokens = 0;
  double sample_temperature = 0.8;
};

// Where the values of keys came from.
class Origins {
 public:
  void write(const std::string& key) { sources_[key] = ""; }
  // `source`: "preset gpt2-tiny", "'gpt2/config.json'".
  void fill(const std::string& key, std::string source) { sources_[key] = std::move(source); }

  // Whether the user wrote the key.
  bool written(const std::string& key) const;
  // What gave a key that the user did not write its value; empty: it has its default.
  std::string source(const std::string& key) const;

 private:
  std::map<std::string, std::string> sources_;  // empty: the user
};

struct Config {
  ModelConfig model;
  LoraConfig lora;
  DataConfig data;
  MeshConfig mesh;
  StrategyConfig strategy;
  NumericsConfig numerics;
  PipelineConfig pipeline;
  OffloadConfig offload;
  PrecisionConfig precision;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  RunConfig run;
  Origins origins;
  std::vector<std::string> notes;  // one line each: what the user should know of values that were filled in
};

// Reads TOML text; `source` names it in messages. `settings` are "section.key=value", applied after the text,
// in order; text values need no quotes there. Throws UsageError, of one line, for text that is not TOML, an
// unknown key (with the closest known one), or a value of the wrong type or out of range.
Config read_config(std::string_view text, std::string_view source,
                   std::span<const std::string> settings = {});
// The same, and also throws UsageError for values that do not go together (check()). If `ranks` is above 0,
// it is the number of ranks, and mesh.shard becomes `ranks` divided by the mesh's other axes. UsageError if
// that is not a whole number. `complete` fills in what files give, before values are checked.
Config parse_config(std::string_view text, std::string_view source,
                    std::span<const std::string> settings = {}, std::int64_t ranks = 0,
                    const std::function<void(Config&)>& complete = nullptr);
// The same from a file, with the keys of [model] that model.weights give (stored_model.h). Throws
// EnvironmentError if a file cannot be read.
// `run_folder` is that of the run whose checkpoint is read, if there is one; else what the configuration
// says.
Config load_config(const std::filesystem::path& path, std::span<const std::string> settings = {},
                   std::int64_t ranks = 0, const std::filesystem::path& run_folder = {});

// The message, and where the values of the keys that it names and the user did not write came from:
// "model.channels is 16; … (from preset gpt2-tiny: model.channels)".
std::string with_origins(const std::string& message, const Config& config);

// Runs `work`. A UsageError of it is thrown again with_origins().
template <class Work>
auto told_with_origins(const Config& config, Work&& work) {
  try {
    return work();
  } catch (const UsageError& error) {
    throw UsageError(with_origins(error.what(), config));
  }
}

Mesh mesh_of(const MeshConfig& mesh);

// Whether a run trains no step, and evaluates once.
bool only_evaluates(const Config& config);
// Whether a run evaluates at all.
bool evaluates(const Config& config);
// What names the data to train on; where a run only evaluates and data.train is empty, data.validation.
const std::string& trained_on(const Config& config);

// How a step's microbatches are dealt to the mesh's data ranks.
Rounds rounds_of(const Config& config);

// Whether a run trains adapters, and exports these alone.
bool exports_adapter(const Config& config);

// Whether an export's path names one file; otherwise it names a folder.
bool is_one_file(const std::string& path);

// Throws UsageError if weights go into several files, or are adapters, but `path` names one file. Messages
// call the path `name`.
void check_export(const char* name, const std::string& path, const Config& config);

// Checks combinations of values, as far as that is possible without opening a file. Throws UsageError naming
// the keys.
void check(const Config& config);

// TOML that parses to the same values: every key, in the table's order.
std::string to_toml(const Config& config);

// "run.steps: 100 -> 200" for every key whose value differs.
std::vector<std::string> differences(const Config& before, const Config& after);

// The text of docs/configuration.md.
std::string config_markdown();

}  // namespace tessera::cli
