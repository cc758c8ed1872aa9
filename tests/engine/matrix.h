// One run of a small language model for the bitwise matrix: a configuration in, losses and final weights out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/data.h"
#include "tessera/fine_tuning.h"
#include "tessera/model.h"
#include "tessera/philox.h"
#include "tessera/pipeline.h"
#include "tessera/trainer.h"
#include "tests/program/sampled.h"

namespace tessera::testing {

enum class Family { gpt2, llama, mlp };

inline std::string name_of(Family family) {
  return family == Family::llama ? "llama" : family == Family::mlp ? "mlp" : "gpt2";
}

// Whatever else differs, the same elements are dropped.
inline constexpr double kDropout = 0.02, kAttentionDropout = 0.05;

struct RunConfig {
  Family family = Family::gpt2;
  int world = 1;  // ranks along the shard axis
  int replicate = 1;
  bool state_over_replicas = false;
  bool parameters_over_replicas = false;
  int pipeline = 1;
  Pipeline schedule = {};
  int tensor = 1;
  int stage = 0;
  ReduceWhen reduce = ReduceWhen::each;
  int blocks = 1;
  DType dtype = DType::fp32;
  int prefetch = 1;
  bool strict_order = false;
  int resident_units = 0;
  Recompute recompute = Recompute::none;
  std::vector<ActivationChoice> unit_activations = {};  // by unit, in place of `recompute`
  int microbatches = 2;                                 // of a rank that has one in every round
  int last_round_ranks = 0;
  int steps = 20;
  double max_norm = 0.5;
  bool poison = false;
  bool guards = false;
  bool graphs = true;  // on a GPU
  std::int64_t layers = 2;
  DeviceType device = DeviceType::cpu;
  int gpu = 0;  // where the device is one: which
  Offload offload = {};
  UpdateWhen update = UpdateWhen::decided;
  Reduction reduction = Reduction::exact;
  double attention_dropout = kAttentionDropout;
  std::int64_t logits_bytes = 0;  // of a chunk of the head's rows; 0: the model's own
  // Heads of queries, and of keys and values, with 8 channels each; the MLP grows alike. 0: the model's own,
  // see below.
  int heads = 0;
  int kv_heads = 0;  // of Llama, where `heads` is given; 0: as many
  int tensor_blocks = 1;
  int exchange_chunks = 1;
  int sequences = 1;  // of a microbatch, of models with sequences
  bool sequence_parallel = true;
  bool fp8_products = false;
  std::int64_t lora_rank = 0;  // of adapters, on all linear layers
  std::vector<std::string> lora_targets = {"all-linear"};
  std::vector<std::string> frozen = {};  // patterns
};

inline std::string choices_of(const RunConfig& run) {
  std::string text;
  for (const ActivationChoice& choice : run.unit_activations)
    text += (text.empty() ? " units " : ",") + std::string(name_of(choice.recompute)) +
            (choice.again.empty() ? "" : " and " + std::to_string(choice.again.size()) + " values") +
            (choice.kept == Space::host ? " on host" : "");
  return text;
}

inline std::string trained_of(const RunConfig& run) {
  std::string text = run.lora_rank > 0 ? " adapters of rank " + std::to_string(run.lora_rank) : "";
  for (const std::string& target : run.lora_targets) text += run.lora_rank > 0 ? " " + target : "";
  for (const std::string& pattern : run.frozen) text += " frozen " + pattern;
  return text;
}

inline std::string to_string(const RunConfig& run) {
  return (run.family == Family::gpt2 ? "" : name_of(run.family) + " ") + "world " +
         std::to_string(run.world) + " stage " + std::to_string(run.stage) + " reduce " +
         std::to_string(static_cast<int>(run.reduce)) + " " + std::string(name_of(run.dtype)) + " prefetch " +
         std::to_string(run.prefetch) + (run.strict_order ? " strict" : " overlap") + " resident " +
         std::to_string(run.resident_units) +
         (run.recompute == Recompute::none ? "" : " recompute " + std::string(name_of(run.recompute))) +
         choices_of(run) + " microbatches " + std::to_string(run.microbatches) +
         (run.last_round_ranks > 0 ? " the last of " + std::to_string(run.last_round_ranks) : "") +
         (run.blocks > 1 ? " in blocks " + std::to_string(run.blocks) : "") +
         (run.replicate > 1 ? " replicate " + std::to_string(run.replicate) +
                                  (run.state_over_replicas ? " with sliced states" : "") +
                                  (run.parameters_over_replicas ? " and parameters" : "")
                            : "") +
         (run.pipeline > 1 ? " pipeline " + std::to_string(run.pipeline) + " " +
                                 std::string(name_of(run.schedule.schedule)) + " chunks " +
                                 std::to_string(run.schedule.chunks)
                           : "") +
         (run.heads > 0 ? " heads " + std::to_string(run.heads) : "") +
         (run.kv_heads > 0 ? " and of keys " + std::to_string(run.kv_heads) : "") +
         (run.tensor > 1 ? " tensor " + std::to_string(run.tensor) : "") +
         (run.layers != 2 ? " layers " + std::to_string(run.layers) : "") +
         (run.tensor_blocks > 1 ? " in " + std::to_string(run.tensor_blocks) + " blocks" : "") +
         (run.exchange_chunks > 1 ? " in " + std::to_string(run.exchange_chunks) + " chunks" : "") +
         (run.sequence_parallel ? "" : " not sequence parallel") + (run.fp8_products ? " in fp8" : "") +
         trained_of(run) + (run.max_norm > 0 ? "" : " unclipped") + (run.graphs ? "" : " without graphs") +
         (run.update == UpdateWhen::decided ? "" : " updated " + std::string(name_of(run.update))) +
         (run.offload == Offload{} ? ""
                                   : " states on " + std::string(name_of(run.offload.states)) + " but " +
                                         std::to_string(run.offload.states_on_device) + ", parameters on " +
                                         std::string(name_of(run.offload.parameters)) + ", staged " +
                                         std::to_string(run.offload.staged));
}

// Whether to run cell `index` of a matrix: all of them or, where TESSERA_SAMPLE is set, one in so many, for
// builds in which a run takes long. A prime larger than any axis meets every value of each.
inline bool is_sampled(int index) { return index % sampled_each(1) == 0; }

// The same for a matrix of which every test run draws one cell in `of_every_run`, others in each `part`.
inline bool is_drawn(int part, int index, int of_every_run) {
  const int each = sampled_each(of_every_run);
  return each == 1 ||
         uniform(23, static_cast<std::uint64_t>(part), static_cast<std::uint64_t>(index)) * each < 1;
}

inline Mesh mesh_of(const RunConfig& run) {
  return {.pipeline = run.pipeline, .replicate = run.replicate, .shard = run.world, .tensor = run.tensor};
}
inline int ranks_of(const RunConfig& run) { return mesh_of(run).world(); }
inline int data_ranks(const RunConfig& run) { return mesh_of(run).data_ranks(); }
inline Rounds rounds_of(const RunConfig& run) {
  return {.count = run.microbatches, .last_ranks = run.last_round_ranks, .blocks = run.blocks};
}

// The same run on so many replicas and shards, with as many microbatches a step in all: `of` has them on one.
inline RunConfig dealt(const RunConfig& of, int replicas, int shards) {
  RunConfig run = of;
  const Rounds rounds = Rounds::of(of.microbatches, {.replicate = replicas, .shard = shards}, of.blocks);
  run.replicate = replicas;
  run.world = shards;
  run.microbatches = rounds.count;
  run.last_round_ranks = rounds.last_ranks;
  return run;
}

struct RunResult {
  std::string fingerprint;
  std::vector<double> losses, norms;
  std::vector<float> weights;  // masters, then rounded parameters, in parameter order
  bool operator==(const RunResult&) const = default;
};

template <typename T>
::testing::AssertionResult same_bits(const std::string& what, const std::vector<T>& values,
                                     const std::vector<T>& expected) {
  if (values.size() != expected.size())
    return ::testing::AssertionFailure() << values.size() << " of " << what << " and not " << expected.size();
  for (std::size_t k = 0; k < values.size(); ++k)
    if (std::memcmp(&values[k], &expected[k], sizeof(T)) != 0)
      return ::testing::AssertionFailure()
             << what << "[" << k << "] is " << values[k] << " and not " << expected[k];
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult same_bits(const RunResult& result, const RunResult& expected) {
  auto losses = same_bits("losses", result.losses, expected.losses);
  if (!losses) return losses;
  auto norms = same_bits("norms", result.norms, expected.norms);
  if (!norms) return norms;
  return same_bits("weights", result.weights, expected.weights);
}

// The largest difference of two values relative to that of `b`.
inline double furthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t k = 0; k < a.size(); ++k) most = std::max(most, std::fabs(a[k] - b[k]) / std::fabs(b[k]));
  return most;
}

// Sequences of one global batch, the same for any world: sample g of the step.
inline std::int32_t token_at(std::uint64_t sample, std::int64_t place, std::int64_t vocabulary) {
  // A noisy counting sequence: something to learn, and something not to.
  const double noise = uniform(17, sample, static_cast<std::uint64_t>(place));
  const auto base = static_cast<std::int64_t>(sample * 7 + static_cast<std::uint64_t>(place) * 3);
  return static_cast<std::int32_t>((base + (noise < 0.1 ? 1 : 0)) % vocabulary);
}

inline Gpt2Config small_gpt(std::int64_t layers = 2, double attention_dropout = kAttentionDropout) {
  return {.vocabulary = 61,
          .context = 16,
          .layers = layers,
          .heads = 2,
          .channels = 32,
          .dropout = kDropout,
          .attention_dropout = attention_dropout};
}

// Heads that share keys and values, and a head of its own.
inline LlamaConfig small_llama(std::int64_t layers = 2, double attention_dropout = kAttentionDropout) {
  return {.vocabulary = 61,
          .context = 16,
          .layers = layers,
          .heads = 4,
          .kv_heads = 2,
          .channels = 32,
          .hidden = 88,
          .dropout = kDropout,
          .attention_dropout = attention_dropout};
}

// The second layer of a pair has outputs that tensor ranks need not divide. An odd number of hidden layers
// makes the classifier the second of a pair.
inline MlpConfig small_mlp(std::int64_t layers, std::int64_t first_of_pair = 24) {
  MlpConfig config = {.inputs = 5, .hidden = {}, .classes = 3};
  for (std::int64_t layer = 0; layer < layers; ++layer)
    config.hidden.push_back(layer % 2 == 0 ? first_of_pair : 17);
  return config;
}

inline Model small_model(const RunConfig& run) {
  if (run.family == Family::mlp) {
    const MlpConfig mlp =
        run.heads > 4 ? small_mlp(run.layers, std::int64_t{8} * run.heads) : small_mlp(run.layers);
    return with_tensor_blocks(make_mlp(mlp, run.dtype), run.tensor_blocks);
  }
  LlamaConfig llama = small_llama(run.layers, run.attention_dropout);
  Gpt2Config gpt2 = small_gpt(run.layers, run.attention_dropout);
  llama.logits_bytes = gpt2.logits_bytes = run.logits_bytes;
  llama.sequence_parallel = gpt2.sequence_parallel = run.sequence_parallel;
  llama.fp8_products = gpt2.fp8_products = run.fp8_products;
  if (run.fp8_products) llama.hidden = 96;
  if (run.heads > 0) {
    llama.heads = llama.kv_heads = gpt2.heads = run.heads;
    llama.channels = gpt2.channels = std::int64_t{8} * run.heads;
    llama.hidden = std::int64_t{22} * run.heads;
    if (run.kv_heads > 0) llama.kv_heads = run.kv_heads;
    llama.context = gpt2.context = 48;  // batches are as long as many numbers of ranks divide
  }
  if (run.lora_rank > 0)
    llama.lora = gpt2.lora = {.rank = run.lora_rank, .alpha = 16.0, .targets = run.lora_targets};
  Model model = run.family == Family::llama ? make_llama(llama, run.dtype) : make_gpt2(gpt2, run.dtype);
  return with_tensor_blocks(with_frozen(std::move(model), run.frozen), run.tensor_blocks);
}

inline TrainerOptions trainer_options(const RunConfig& run) {
  TrainerOptions options;
  options.engine.mesh = mesh_of(run);
  options.engine.strategy = {.placements = Placements::of_stage(run.stage),
                             .reduce = run.reduce,
                             .reduction = run.reduction,
                             .blocks = run.blocks,
                             .update = run.update,
                             .prefetch = run.prefetch,
                             .recompute = run.recompute,
                             .unit_activations = run.unit_activations,
                             .resident_units = run.stage == 3 ? run.resident_units : 0,
                             .state_over_replicas = run.state_over_replicas,
                             .parameters_over_replicas = run.parameters_over_replicas,
                             .pipeline = run.schedule,
                             .offload = run.offload};
  options.engine.disk_directory = std::filesystem::temp_directory_path();
  options.engine.optimizer.options = AdamWOptions{.weight_decay = 0.1};
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay", .weight_decay = 0.0}};
  // One family has these of each type.
  if (run.family == Family::llama && run.dtype == DType::bf16)
    options.engine.optimizer.moment_type = DType::bf16;
  options.engine.clip.max_norm = run.max_norm;
  options.engine.debug.strict_order = run.strict_order;
  options.engine.debug.poison = run.poison;
  options.engine.debug.guards = run.guards;
  options.engine.graphs = run.graphs;
  options.engine.device = run.device;
  options.engine.device_ordinal = run.gpu;
  options.engine.waits.deadline = std::chrono::milliseconds(60'000);
  options.batch = {.sequences = run.sequences, .length = run.heads > 0 ? 12 : 16};
  if (run.family == Family::mlp) options.batch = {.sequences = 12, .length = 1};
  options.microbatches = run.microbatches;
  options.last_round_ranks = run.last_round_ranks;
  options.exchange_chunks = run.exchange_chunks;
  options.seed = 5;
  return options;
}

inline Trainer::Fetch fetch_samples(int rank, const Mesh& mesh, const Rounds& rounds, int step,
                                    std::int64_t vocabulary, const BatchShape& shape) {
  const SampleGrid grid = {.mesh = mesh, .rounds = rounds, .sequences = shape.sequences};
  return [=](int microbatch, void* batch) {
    auto* inputs = static_cast<std::int32_t*>(batch);
    auto* targets = inputs + shape.tokens();
    for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
      const auto sample = static_cast<std::uint64_t>(grid.first_sample(step, rank, microbatch) + sequence);
      for (std::int64_t t = 0; t < shape.length; ++t) {
        inputs[sequence * shape.length + t] = token_at(sample, t, vocabulary);
        targets[sequence * shape.length + t] = token_at(sample, t + 1, vocabulary);
      }
    }
  };
}

inline Trainer::Fetch fetch_samples(int rank, int world, int microbatches, int step, std::int64_t vocabulary,
                                    const BatchShape& shape) {
  return fetch_samples(rank, {.shard = world}, Rounds{.count = microbatches}, step, vocabulary, shape);
}

// Samples of small_mlp(): the largest of the first three inputs is the class, but for some.
inline Trainer::Fetch fetch_points(int rank, const Mesh& mesh, const Rounds& rounds, int step,
                                   const BatchShape& shape) {
  const SampleGrid grid = {.mesh = mesh, .rounds = rounds, .sequences = shape.sequences};
  return [=](int microbatch, void* batch) {
    const MlpConfig config = small_mlp(0);
    auto* inputs = static_cast<float*>(batch);
    auto* classes = reinterpret_cast<std::int32_t*>(static_cast<std::byte*>(batch) +
                                                    round_up(4 * shape.sequences * config.inputs, 256));
    for (std::int64_t row = 0; row < shape.sequences; ++row) {
      const auto sample = static_cast<std::uint64_t>(grid.first_sample(step, rank, microbatch) + row);
      float* const point = inputs + row * config.inputs;
      for (std::int64_t i = 0; i < config.inputs; ++i)
        point[i] = static_cast<float>(uniform(19, sample, static_cast<std::uint64_t>(i))) - 0.5f;
      const auto largest = std::max_element(point, point + config.classes) - point;
      classes[row] = sample % 11 == 3 ? -1 : static_cast<std::int32_t>(largest);
    }
  };
}

// Fetches samples of whichever family the run's model is of.
inline Trainer::Fetch fetch_for(const RunConfig& run, int world_rank, int step, const Model& model,
                                const BatchShape& shape) {
  const Mesh mesh = mesh_of(run);
  const int rank = mesh.data_rank(world_rank);
  if (run.family == Family::mlp) return fetch_points(rank, mesh, rounds_of(run), step, shape);
  return fetch_samples(rank, mesh, rounds_of(run), step, model.vocabulary, shape);
}

inline std::vector<float> read_weights(Engine& engine) {
  std::vector<float> weights;
  for (StateKind state : {StateKind::master, StateKind::parameter})
    for (ParameterId id = 0; id < engine.layout().parameters(); ++id) {
      // A frozen parameter has no master.
      if (state == StateKind::master && !engine.layout().parameter(id).trainable) continue;
      std::vector<float> values(static_cast<std::size_t>(numel_of(engine.layout().parameter(id).shape)));
      engine.read(id, state, 0, values);
      weights.insert(weights.end(), values.begin(), values.end());
    }
  return weights;
}

// The world that a rank's engine works in: on GPUs, where there are several ranks, each with one of its own.
inline Communicator placed(const Communicator& host, TrainerOptions& options) {
  if (options.engine.device == DeviceType::cpu || host.world() == 1) return host;
  options.engine.device_ordinal = host.rank();
  return make_nccl_world(host);
}

using Place = std::function<Communicator(const Communicator& host, TrainerOptions& options)>;

// What rank 0 saw; every rank's losses are checked against it.
inline RunResult run_training(const RunConfig& run, const Place& place = placed) {
  const auto model = std::make_shared<const Model>(small_model(run));
  std::mutex mutex;
  IdVector<RunResult> results(ranks_of(run));
  run_local(ranks_of(run), {}, [&](Communicator world) {
    const int rank = world.rank();
    TrainerOptions options = trainer_options(run);
    Trainer trainer(place(world, options), model, options);
    RunResult result;
    result.fingerprint = fingerprint_of(trainer.engine().numerics());
    for (int step = 0; step < run.steps; ++step) {
      const StepResult done = trainer.train_step(3e-3, fetch_for(run, rank, step, *model, options.batch));
      if (!done.applied) throw Error("step " + std::to_string(step) + " was not applied");
      result.losses.push_back(done.loss);
      result.norms.push_back(done.gradient_norm);
    }
    result.weights = read_weights(trainer.engine());
    const std::lock_guard lock(mutex);
    results[rank] = std::move(result);
  });
  for (const RunResult& result : results)
    if (result != results[0]) throw Error("ranks differ: " + to_string(run));
  return results[0];
}

// The same, trained once in a process for all that ask. Runs that to_string() does not tell apart must be
// equal.
inline const RunResult& known_run(const RunConfig& run) {
  static std::map<std::string, RunResult> known;
  const auto [entry, is_new] = known.try_emplace(to_string(run));
  if (is_new) entry->second = run_training(run);
  return entry->second;
}

}  // namespace tessera::testing
