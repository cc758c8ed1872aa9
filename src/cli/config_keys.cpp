#include "src/cli/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/engine_options.h"
#include "tessera/model.h"
#include "tessera/optimizer_fields.h"
#include "tessera/pipeline.h"

namespace tessera::cli {

namespace {

Key text(std::string name, std::string* target, std::string meaning, std::vector<std::string> words = {}) {
  return {.name = std::move(name),
          .kind = KeyKind::text,
          .target = target,
          .meaning = std::move(meaning),
          .words = std::move(words)};
}

Key integer(std::string name, std::int64_t* target, double min, std::string meaning, double max = kMostInt) {
  return {.name = std::move(name),
          .kind = KeyKind::integer,
          .target = target,
          .meaning = std::move(meaning),
          .min = min,
          .max = max};
}

Key bytes(std::string name, std::int64_t* target, std::string meaning) {
  Key key = integer(std::move(name), target, 0, std::move(meaning), kMostExact);
  key.kind = KeyKind::bytes;
  return key;
}

// Of an integer or a number: "auto" may stand for kAuto.
Key or_auto(Key key) {
  key.words = {"auto"};
  return key;
}

Key boolean(std::string name, bool* target, std::string meaning) {
  return {.name = std::move(name), .kind = KeyKind::boolean, .target = target, .meaning = std::move(meaning)};
}

Key texts(std::string name, std::vector<std::string>* target, std::string meaning) {
  return {.name = std::move(name), .kind = KeyKind::texts, .target = target, .meaning = std::move(meaning)};
}

struct Range {
  double min = 0.0;
  double max = std::numeric_limits<double>::max();
  bool above_min = false, or_zero = false, power_of_two = false;
};

constexpr double kLeastFp32 = 1e-45;  // what is computed in fp32 takes less for 0

Key number(std::string name, double* target, Range range, std::string meaning) {
  return {.name = std::move(name),
          .kind = KeyKind::number,
          .target = target,
          .meaning = std::move(meaning),
          .min = range.min,
          .max = range.max,
          .above_min = range.above_min,
          .or_zero = range.or_zero,
          .power_of_two = range.power_of_two};
}

using Keys = std::vector<Key>;

std::vector<std::string> all_presets() {
  std::vector<std::string> names = Gpt2Config::presets();
  for (std::string& name : LlamaConfig::presets()) names.push_back(std::move(name));
  return names;
}

// Keys of one family only; check() refuses them for another.
void add_llama(Keys& keys, ModelConfig& c) {
  keys.push_back(integer("model.kv_heads", &c.kv_heads, 0,
                         "llama: key and value heads, a divisor of `heads`; 0 is the preset's."));
  keys.push_back(integer("model.hidden", &c.hidden, 0, "llama: width of the MLP; 0 is the preset's."));
  keys.push_back(number("model.rope_theta", &c.rope_theta, {.min = 1.0, .above_min = true, .or_zero = true},
                        "llama: base of the rotary embedding's frequencies; 0 is the preset's."));
  keys.push_back(number("model.rope_scaling", &c.rope_scaling, {.min = 1.0, .or_zero = true},
                        "llama: how much longer the rotary embedding's long waves are made, for contexts "
                        "beyond rope_original_context; 1: not at all; 0 is the preset's. It is Llama 3's "
                        "`factor`."));
  keys.push_back(number("model.rope_low_freq_factor", &c.rope_low_freq_factor,
                        {.min = kLeastFp32, .or_zero = true},
                        "llama: with rope_scaling, a wave is long from rope_original_context divided by this "
                        "many tokens on; 0 is the preset's."));
  keys.push_back(number("model.rope_high_freq_factor", &c.rope_high_freq_factor,
                        {.min = kLeastFp32, .or_zero = true},
                        "llama: with rope_scaling, a wave stays as it is up to rope_original_context divided "
                        "by this many tokens; above rope_low_freq_factor; 0 is the preset's."));
  keys.push_back(integer("model.rope_original_context", &c.rope_original_context, 0,
                         "llama: with rope_scaling, the context of the first training in tokens, Llama 3's "
                         "`original_max_position_embeddings`; 0 is the preset's."));
  keys.push_back(number("model.norm_epsilon", &c.norm_epsilon,
                        {.min = kLeastFp32, .max = 0.999999, .or_zero = true},
                        "llama: added to the mean square in RMSNorm; 0 is the preset's."));
  Key tied = text("model.tied", &c.tied, "llama: whether the head is the token embedding.",
                  {"preset", "true", "false"});
  tied.boolean_words = true;
  keys.push_back(std::move(tied));
}

void add_model(Keys& keys, ModelConfig& c) {
  keys.push_back(
      text("model.family", &c.family,
           "The architecture. Where it is not given, the one of model.weights' config.json, or that "
           "model.preset is of.",
           {"gpt2", "llama"}));
  keys.push_back(
      text("model.preset", &c.preset,
           "The dimensions to start from; the other keys of this section change single ones. Where "
           "it is not given: those of model.weights' config.json, or of the smallest preset of "
           "model.family.",
           all_presets()));
  keys.push_back(integer("model.vocabulary", &c.vocabulary, 0,
                         "Distinct tokens; 0 is the preset's. Text is read as bytes and needs 256."));
  keys.push_back(
      integer("model.pad_vocabulary_to", &c.pad_vocabulary_to, 1,
              "The embedding and the head have rows for a multiple of so many tokens. Rows behind the "
              "vocabulary are 0, stay 0 and have no logits. Weights that are imported and exported do "
              "not have them. 1: no such rows.",
              kMostBlocks));
  keys.push_back(
      integer("model.context", &c.context, 0, "The longest sequence in tokens; 0 is the preset's."));
  keys.push_back(integer(
      "model.layers", &c.layers, 0,
      fmt::format("Transformer blocks; 0 is the preset's. Times run.microbatches {} at most: a plan of "
                  "so many takes minutes and some GiB.",
                  kMostPlannedBlocks),
      kMostPlanned));
  keys.push_back(integer("model.heads", &c.heads, 0, "Attention heads in a block; 0 is the preset's."));
  keys.push_back(
      integer("model.channels", &c.channels, 0, "Width, a multiple of `heads`; 0 is the preset's."));
  keys.push_back(
      bytes("model.logits_memory", &c.logits_memory,
            "The most bytes of fp32 logits at once: the head takes a microbatch in chunks of tokens. "
            "Fewer chunks are faster. In bf16 several chunks take 4 bytes for each element of the "
            "head's weight, in which its gradient is summed. 0: 64 MiB on the CPU, the logits of "
            "2,048 tokens on a GPU."));
  constexpr Range kShare = {.min = 0.0, .max = 0.999};
  keys.push_back(number("model.dropout", &c.dropout, kShare,
                        "The share of the elements of the embedding's output, and of what attention and MLP "
                        "add to the residual stream, that a training step sets to 0. Which ones is a "
                        "function of run.seed, the step and the place in its batch, the same on every "
                        "mesh. Evaluations drop nothing."));
  keys.push_back(number("model.attention_dropout", &c.attention_dropout, kShare,
                        "Likewise of the attention's probabilities. On a GPU, training steps then compute "
                        "attention by Tessera's own kernel, not by cuDNN's."));
  add_llama(keys, c);
  keys.push_back(
      text("model.weights", &c.weights,
           "Weights to start from, instead of drawn ones: a .safetensors file, its index or its "
           "folder, with the names of Hugging Face's checkpoints. The config.json beside them gives "
           "the keys of this section that are not written, and must agree with those that are "
           "(docs/tool.md). Empty: none. A run that is resumed takes its checkpoint's instead."));
  keys.push_back(
      boolean("model.allow_nonfinite_weights", &c.allow_nonfinite_weights,
              "Whether model.weights may have infinities and NaNs. If not, the first one is refused "
              "by its tensor and index."));
  keys.push_back(
      text("model.adapter", &c.adapter,
           "A folder of an adapter to start from, as PEFT writes it, for model.weights. Its "
           "adapter_config.json gives the keys of [lora] that are not written, and must agree with those "
           "that are (docs/tool.md). Empty: adapters begin as [lora] says. A run that is resumed takes its "
           "checkpoint's instead."));
  keys.push_back(texts(
      "model.frozen", &c.frozen,
      "Patterns over names of parameters, such as [\"embed.*\", \"block.0.*\"]: what they match is not "
      "trained, and has no gradient and no optimizer state. * stands for any characters. A pattern that "
      "matches nothing is refused. With lora.rank above 0 all but the adapters are frozen anyway."));
}

void add_lora(Keys& keys, LoraConfig& c) {
  keys.push_back(integer("lora.rank", &c.rank, 0,
                         "Rank of the adapters, PEFT's `r`. 0: there are none, and all is trained that "
                         "model.frozen does not name.",
                         kMostBlocks));
  keys.push_back(
      number("lora.alpha", &c.alpha, {.min = 0.0, .max = 1e9},
             "What an adapter adds is multiplied by lora.alpha / lora.rank, PEFT's `lora_alpha`. 0: as "
             "lora.rank, so that it is 1."));
  keys.push_back(
      texts("lora.targets", &c.targets,
            "The linear layers that have adapters, PEFT's `target_modules`: of llama q_proj, k_proj, v_proj, "
            "o_proj, gate_proj, up_proj and down_proj; of gpt2 c_attn, attn.c_proj, c_fc and mlp.c_proj; "
            "all-linear for all of these. Empty: as PEFT, q_proj and v_proj, or c_attn."));
  keys.push_back(
      boolean("lora.merge", &c.merge,
              "Whether run.export writes the whole model with its adapters added to the weights, in "
              "fp32, which needs no PEFT. If not, it writes the adapters alone, as PEFT does."));
}

void add_data(Keys& keys, DataConfig& c) {
  keys.push_back(text(
      "data.train", &c.train,
      "The files to train on: tokens (`.bin`), or any other file, read as bytes. One file, or a "
      "pattern such as `fineweb_train_*.bin`, whose files follow each other by name; no sample "
      "crosses from one into the next, and a file of at most run.length tokens is not read; one of none "
      "is refused. A mask beside a token file (`.mask`) says which of its tokens count in the loss. A run "
      "that is resumed goes on at the same place, which is a number of samples: with another run.length, "
      "data.seed or part that is kept for evaluation these are other windows of the data, of which some "
      "then come again or not at all in this epoch. Other files under the same name "
      "are refused, as far as the count of each one's tokens, and those at its two ends, tell them apart; "
      "another name is taken, and told as a change."));
  keys.push_back(text("data.validation", &c.validation,
                      "A file or pattern to evaluate on. Empty: the end of the training data, see below."));
  keys.push_back(
      number("data.validation_fraction", &c.validation_fraction, {.min = 0.0, .max = 0.9},
             "The part of the training data, at its end, that is kept for evaluation and not trained on. "
             "With data.validation nothing is."));
  keys.push_back(
      integer("data.seed", &c.seed, 0, "Of the order of the samples, the same for every mesh.", kMostExact));
}

void add_mesh(Keys& keys, MeshConfig& c) {
  keys.push_back(integer("mesh.shard", &c.shard, 1,
                         "Ranks that share the states between them. A rank is a thread of this process, or a "
                         "process that a launcher started."));
  keys.push_back(integer("mesh.pipeline", &c.pipeline, 1,
                         "Ranks that the model's chain of units is cut over; see [pipeline]."));
  keys.push_back(
      integer("mesh.replicate", &c.replicate, 1,
              "Replicas of the shard group (hybrid sharding, HSDP): gradients are reduced within a "
              "group, then across the replicas."));
  keys.push_back(
      integer("mesh.tensor", &c.tensor, 1,
              "Ranks that split every layer: heads, columns and rows of matrices, rows of the vocabulary, "
              "and between the layers tokens. They see the same microbatches."));
}

void add_numerics(Keys& keys, NumericsConfig& c) {
  keys.push_back(integer(
      "numerics.blocks", &c.blocks, 1,
      "Blocks of consecutive microbatches that a step is cut into, a power of two. A block's gradients are "
      "one sum in ascending order, and blocks are added as a balanced tree. Each replica has consecutive "
      "blocks, so that every mesh.replicate that divides them gives the same bits. With more than 1, the "
      "step's microbatches must be a multiple of them, and strategy.reduction exact; strategy.reduce "
      "automatic then means each. Each doubling of a replica's blocks takes a shard of gradients in fp32. "
      "Another number changes bits.",
      kMostBlocks));
  keys.push_back(integer(
      "numerics.tensor_blocks", &c.tensor_blocks, 1,
      "Blocks that every layer is cut into, a power of two and a multiple of mesh.tensor. Each tensor rank "
      "has as many, and does one after the other what a rank for each would do; what it adds over blocks is "
      "a balanced tree. So every mesh.tensor that divides them gives the same bits. Heads, the tokens of a "
      "microbatch and the width of the MLP must be multiples of the blocks, and a block of a matrix or bias "
      "must have a multiple of 64 elements. Needs strategy.reduction exact. Smaller products cost time, and "
      "sums of several blocks a rank cost memory. Another number changes bits.",
      kMostBlocks));
}

void add_strategy(Keys& keys, StrategyConfig& c) {
  keys.push_back(
      integer("strategy.stage", &c.stage, 0,
              "ZeRO stage: 0 replicates all, 1 shards the optimizer state, 2 also the gradients, 3 "
              "also the parameters.",
              3));
  keys.push_back(
      text("strategy.reduce", &c.reduce,
           "When gradients are reduced over the ranks: after each microbatch, with which any number "
           "of shards gives the same bits, or once after the last, which is faster at stages 0 and "
           "1 where the network is slow and microbatches are many and short. Automatic is each at "
           "stages 2 and 3, last at 0 and 1.",
           {"automatic", "each", "last"}));
  keys.push_back(text("strategy.reduction", &c.reduction,
                      "How gradients are added over the ranks: exact, in one fp32 chain in rank order, the "
                      "same bits on every backend and at every stage; native, as NCCL does it fastest, in "
                      "its order and rounded to their type on the way. Native needs run.device = "
                      "\"cuda\".",
                      {"exact", "native"}));
  keys.push_back(
      text("strategy.update", &c.update,
           "When optimizer states and parameters are updated: decided, behind the step's decision "
           "on clipping and skipping; reduced, as soon as a gradient is reduced, beside the rest of "
           "backward, which frees its memory; next, of what the host updates, by the next step beside its "
           "forward. Reduced needs optimizer.clip = 0 and precision.loss_scaling = false, and ends the "
           "run at a gradient that is not finite; next needs offload.states.",
           {"decided", "reduced", "next"}));
  keys.push_back(integer("strategy.prefetch", &c.prefetch, 0,
                         "How many uses ahead parameters are gathered; 0 gathers when needed and hides "
                         "nothing."));
  keys.push_back(text("strategy.recompute", &c.recompute,
                      "Which activations are made again just before backward rather than kept: selective, "
                      "the outputs of norms and activation functions; full, all but each unit's input; auto, "
                      "for each unit one of these or single values, as little as run.device_memory and "
                      "run.host_memory allow.",
                      {"none", "selective", "full", "auto"}));
  keys.push_back(
      or_auto(integer("strategy.resident_units", &c.resident_units, 0,
                      "At stage 3: units, counted from the last, that keep their gathered parameters from "
                      "forward to backward; more than there are: all. \"auto\": as many as run.device_memory "
                      "and run.host_memory allow.")));
  keys.push_back(
      boolean("strategy.sequence_parallel", &c.sequence_parallel,
              "With mesh.tensor of 2 or more: whether each tensor rank has some of the tokens between the "
              "layers that they split, in norms and the residual stream. If not, each has all of them there, "
              "in more memory, and backward exchanges less."));
  keys.push_back(
      integer("strategy.exchange_chunks", &c.exchange_chunks, 1,
              "Chunks of rows into which each exchange between tensor ranks is cut: one travels while "
              "products of another run. Needs mesh.tensor of 2 or more, and divides the tokens that a "
              "tensor rank has of a microbatch."));
  keys.push_back(
      boolean("strategy.state_over_replicas", &c.state_over_replicas,
              "Whether each replica keeps and updates only its slice of its shard's optimizer state. "
              "Needs stage 1 or higher and mesh.replicate of 2 or more."));
  keys.push_back(
      boolean("strategy.parameters_over_replicas", &c.parameters_over_replicas,
              "At stage 3, with state_over_replicas: whether each replica keeps only its slice of its "
              "shard's parameters, too (hpZ). A step gathers a shard over the replicas once."));
  keys.push_back(boolean("strategy.strict_order", &c.strict_order,
                         "Run one instruction after the other, without overlap: for debugging. The results "
                         "are the same."));
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const std::string_view name : pipeline_schedule_names()) names.emplace_back(name);
  return names;
}

std::string meanings_of_schedules() {
  std::string meanings;
  for (const std::string_view name : pipeline_schedule_names())
    meanings += fmt::format("{}{}: {}", meanings.empty() ? "" : "; ", name,
                            meaning_of(*pipeline_schedule_named(name)));
  return meanings;
}

void add_pipeline(Keys& keys, PipelineConfig& c) {
  keys.push_back(
      text("pipeline.schedule", &c.schedule,
           "The order of forward and backward passes on each pipeline rank. " + meanings_of_schedules() + ".",
           schedule_names()));
  keys.push_back(
      integer("pipeline.chunks", &c.chunks, 1,
              "Runs of units on each pipeline rank (virtual stages): more make the bubble smaller and "
              "the messages more."));
  keys.push_back(
      text("pipeline.cuts", &c.cuts,
           "Where the chain is cut: \"balanced\" by the units' operations, as well as run.device_memory "
           "and run.host_memory allow, \"count\" into equal counts of units, or the first unit of each chunk "
           "but the first, such as \"5,9\". Unit 0 is the embedding, the last one the head."));
  Key gather_once = text("pipeline.gather_once", &c.gather_once,
                         "At stage 3: whether a unit stays gathered while its chunk takes several "
                         "microbatches in a row in one direction. \"auto\": if run.device_memory allows.",
                         {"auto", "true", "false"});
  gather_once.boolean_words = true;
  keys.push_back(std::move(gather_once));
}

void add_offload(Keys& keys, OffloadConfig& c) {
  const std::vector<std::string> spaces = {"device", "host", "disk"};
  keys.push_back(text("offload.states", &c.states,
                      "Where master weights and moments lie. Off the device, the host updates them: "
                      "gradients go down as units are reduced, updated parameters come up.",
                      spaces));
  keys.push_back(or_auto(
      number("offload.states_on_device", &c.states_on_device, {.min = 0.0, .max = 1.0},
             "The share of the units, from the first on, that keep their states on the device all the "
             "same and are updated there at the same time; \"auto\": as run.device_memory and "
             "run.host_memory allow, and in the least time by a cost model.")));
  keys.push_back(text("offload.parameters", &c.parameters,
                      "Where a rank's shard of the parameters lies; at stage 3 only.", spaces));
  keys.push_back(text("offload.activations", &c.activations,
                      "Where what units save, and their inputs, wait from forward to backward. auto, with "
                      "strategy.recompute = \"auto\": on the host for the units where that takes less time.",
                      {"device", "host", "auto"}));
  keys.push_back(integer("offload.staged", &c.staged, 1,
                         "Of states or parameters off the device: for how many units what an update needs is "
                         "in memory at a time, being read, updated or written back."));
  keys.push_back(text("offload.directory", &c.directory,
                      "Where the file for what lies on the disk is made: a folder on a local disk. The file "
                      "has no name and is gone when the run ends, however it ends."));
}

void add_precision(Keys& keys, PrecisionConfig& c) {
  keys.push_back(
      text("precision.parameters", &c.parameters,
           "Type of parameters, activations and gradients; master weights are fp32. A CPU without AVX-512 "
           "multiplies bf16 matrices in fp32: the memory is that of bf16, the time more than that of fp32.",
           {"fp32", "bf16"}));
  keys.push_back(text(
      "precision.products", &c.products,
      "What the linear layers of blocks multiply in: parameters, as those are; fp8, of bf16 parameters: the "
      "operands of all three products, in e4m3 with a scale for each 128 elements (docs/numerics.md). Tokens "
      "of a microbatch and the inputs and outputs of these layers on a rank are then multiples of 16, and a "
      "GPU needs compute capability 9.0 or later. A CPU computes the same numbers, no faster. What trains "
      "nothing, as tessera generate, multiplies in bf16.",
      {"parameters", "fp8"}));
  keys.push_back(text(
      "precision.moments", &c.moments,
      "Type of the optimizer's moments: bf16 spares 4 of the 16 bytes that a bf16 parameter takes "
      "by adam and adamw. They are then rounded at random, so that their expectation stays, by a "
      "function of the step and the place in the model: the same on every mesh. A run that was saved goes on "
      "with those it has.",
      {"fp32", "bf16"}));
  keys.push_back(boolean("precision.loss_scaling", &c.loss_scaling,
                         "Dynamic loss scaling: a step whose gradients are not finite is skipped and the "
                         "scale halved, to no less than 1; after growth_interval steps without one it "
                         "doubles, to no more than 16777216 (2^24)."));
  keys.push_back(number("precision.initial_scale", &c.initial_scale,
                        {.min = 1.0, .max = 16777216.0, .power_of_two = true},
                        "The loss scale to begin with; it stays within the same bounds."));
  keys.push_back(integer("precision.growth_interval", &c.growth_interval, 1,
                         "Steps applied in a row before the loss scale doubles."));
}

Range range_of(OptionRange range) {
  switch (range) {
    case OptionRange::below_one:
      return {.min = 0.0, .max = 0.999999};
    case OptionRange::positive:
      return {.min = kLeastFp32, .max = 1.0};
    case OptionRange::non_negative:
      return {.min = 0.0, .max = 10.0};
  }
  return {};
}

std::optional<OptimizerField> find_field(OptimizerOptions& options, std::string_view name) {
  for (const OptimizerField& field : fields_of(options))
    if (field.name == name) return field;
  return std::nullopt;
}

// What a field means to the optimizers that have it: "adamw, adam: decay of the first moment."
std::string meaning_of(std::string_view name) {
  std::vector<std::pair<std::string, std::string_view>> meanings;  // with the optimizers that share each
  for (OptimizerOptions& options : optimizer_defaults()) {
    const std::optional<OptimizerField> field = find_field(options, name);
    if (!field) continue;
    const auto same = std::ranges::find(meanings, field->meaning, [](const auto& row) { return row.second; });
    if (same == meanings.end())
      meanings.emplace_back(name_of(options), field->meaning);
    else
      same->first += fmt::format(", {}", name_of(options));
  }
  std::string text;
  for (const auto& [optimizers, meaning] : meanings)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", optimizers, meaning);
  return text +
         (name == "weight_decay" ? ". It is of matrices and embeddings; biases and norms have none." : ".");
}

Key field_key(const std::string& name, OptimizerConfig& c) {
  std::optional<OptimizerField> field = find_field(c.chosen(), name);
  for (auto other = c.options.begin(); !field; ++other) field = find_field(*other, name);
  const std::string key = "optimizer." + name;
  if (bool* const* on = std::get_if<bool*>(&field->value)) return boolean(key, *on, meaning_of(name));
  return number(key, std::get<double*>(field->value), range_of(field->range), meaning_of(name));
}

void add_optimizer(Keys& keys, OptimizerConfig& c) {
  const std::vector<std::string_view> names = optimizer_names();
  keys.push_back(
      text("optimizer.kind", &c.kind, "The algorithm; sgd is with momentum.", {names.begin(), names.end()}));
  for (const std::string& name : optimizer_fields()) keys.push_back(field_key(name, c));
  keys.push_back(number("optimizer.clip", &c.clip, {},
                        "The largest global gradient norm; a larger gradient is scaled down to it. 0 does "
                        "not clip."));
  keys.push_back({.name = "optimizer.rates",
                  .kind = KeyKind::factors,
                  .target = &c.rates,
                  .meaning =
                      "Factors on the learning rate by patterns over names of parameters, such as "
                      "{ \"embed.*\" = 0.1, \"head.*\" = 0.5 }. * stands for any characters. A parameter "
                      "that two patterns match is refused, and so is a pattern that matches nothing that is "
                      "trained."});
}

void add_schedule(Keys& keys, ScheduleConfig& c) {
  keys.push_back(text("schedule.kind", &c.kind, "How the learning rate falls after warmup.",
                      {"constant", "linear", "cosine", "warmup_stable_decay"}));
  keys.push_back(number("schedule.learning_rate", &c.learning_rate,
                        {.min = 0.0, .max = 1e3, .above_min = true}, "The learning rate at its peak."));
  keys.push_back(integer("schedule.warmup_steps", &c.warmup_steps, 0, "Steps that rise to the peak."));
  keys.push_back(integer("schedule.total_steps", &c.total_steps, 0,
                         "The step at which the decay ends: steps from it on have the final value. 0 is "
                         "run.steps. A constant schedule has no decay."));
  keys.push_back(integer("schedule.decay_steps", &c.decay_steps, 0,
                         "warmup_stable_decay, which needs at least 1: how many of the last steps decay, in "
                         "a straight line. The first of them is still at the peak; the final value is "
                         "reached at total_steps."));
  keys.push_back(number("schedule.final_factor", &c.final_factor, {.min = 0.0, .max = 1.0},
                        "The learning rate from total_steps on, as a part of the peak; the last step before "
                        "is one step of the decay short of it."));
  keys.push_back(
      integer("schedule.base_batch", &c.base_batch, 0,
              "Sequences per step for which learning_rate was found, where batch_scaling asks, which "
              "needs at least 1."));
  keys.push_back(text("schedule.batch_scaling", &c.batch_scaling,
                      "What becomes of the learning rate at another batch than base_batch: it stays, or is "
                      "multiplied by the ratio or its square root.",
                      {"none", "linear", "square_root"}));
}

void add_run(Keys& keys, RunConfig& c) {
  keys.push_back(
      integer("run.steps", &c.steps, 0,
              "Steps to train, counted from the very first, skipped ones included; 0: no limit. With "
              "run.seconds = 0, too, the run trains nothing: it evaluates once, whatever "
              "run.evaluate_every is, and saves nothing."));
  keys.push_back(number("run.seconds", &c.seconds, {.min = 0.0, .max = 1e9},
                        "Seconds to train, counted from this start; 0: no limit. The earlier limit ends the "
                        "run."));
  keys.push_back(integer("run.sequences", &c.sequences, 1, "Sequences in a microbatch of one rank."));
  keys.push_back(integer("run.length", &c.length, 1, "Tokens in a sequence; at most the model's context."));
  keys.push_back(integer(
      "run.microbatches", &c.microbatches, 1,
      fmt::format(
          "Microbatches of one rank that a step accumulates; times model.layers {} at most. Leave it at "
          "1 where run.microbatches_per_step is given.",
          kMostPlannedBlocks),
      kMostPlanned));
  keys.push_back(integer(
      "run.microbatches_per_step", &c.microbatches_per_step, 0,
      "Microbatches of a step over all ranks, whatever the mesh; 0: run.microbatches for each of "
      "mesh.shard × mesh.replicate. They are dealt out in rounds, one to each of these in turn. Where the "
      "last round is not full, the ranks without a microbatch rest in it; there may also be fewer than "
      "ranks. That needs mesh.replicate = 1 or several numerics.blocks, strategy.reduction = \"exact\", and "
      "a strategy.reduce other than \"last\".",
      kMostPlanned));
  keys.push_back(integer(
      "run.evaluate_every", &c.evaluate_every, 0,
      "Steps between evaluations on the validation data; what is there at the end of the run is "
      "evaluated, too, unless a signal ended it. A run that is resumed behind a step whose "
      "evaluation was due, and by run.metrics is missing, as a signal ended it, say, makes that first, "
      "once. 0: none at all."));
  keys.push_back(
      integer("run.evaluation_microbatches", &c.evaluation_microbatches, 0,
              "Microbatches of one rank in an evaluation, from the start of the validation data to "
              "at most their end; 0: all of the data. It runs in parts of 16 times mesh.pipeline, or 1024 "
              "where that is less, between "
              "which a signal ends it. Runs whose product of this, run.sequences, "
              "mesh.replicate and mesh.shard differs evaluate on different parts, unless on all: "
              "compare no such losses."));
  keys.push_back(
      text("run.checkpoint", &c.checkpoint,
           "Folder for checkpoints; one is saved at the end of the run. Of one run only: another is "
           "refused while it saves there, and a fresh one where there are checkpoints. Empty: none."));
  keys.push_back(integer("run.checkpoint_every", &c.checkpoint_every, 0,
                         "Steps between checkpoints; 0: only at the end."));
  keys.push_back(integer("run.checkpoint_keep", &c.checkpoint_keep, 1, "The last checkpoints to keep."));
  keys.push_back(boolean("run.checkpoint_async", &c.checkpoint_async,
                         "Whether training goes on while a checkpoint is written: its states are read where "
                         "they lie, and the next update waits until they have been. What lies on the disk is "
                         "written before the next step begins."));
  keys.push_back(
      text("run.export", &c.export_path,
           "Where the weights are written at the end of the run: a .safetensors file, or a folder, "
           "which the transformers library loads: it gets a config.json, too. Empty: nowhere."));
  keys.push_back(text("run.export_type", &c.export_type, "The type of the weights that are exported.",
                      {"fp32", "bf16", "fp16"}));
  keys.push_back(
      bytes("run.export_file_bytes", &c.export_file_bytes,
            "The most bytes of weights in an exported file of several tensors; a larger tensor has "
            "a file of its own. 0: one file."));
  Key resume =
      text("run.resume", &c.resume,
           "Whether to continue from the last checkpoint in run.checkpoint; \"auto\": where there is "
           "one, be it saved on another mesh or at another stage, as long as a step has as many samples. A "
           "last one that is damaged or cannot be read ends the run; none older is taken for it.",
           {"false", "true", "auto"});
  resume.boolean_words = true;
  keys.push_back(std::move(resume));
  keys.push_back(
      integer("run.seed", &c.seed, 0, "Of the initial weights, dropout and the sample text.", kMostExact));
  keys.push_back(text(
      "run.device", &c.device,
      "Where the model lies and computes: \"cuda\", a GPU for each rank, of those that its process sees, "
      "in turn on each host.",
      {"cpu", "cuda"}));
  keys.push_back(boolean(
      "run.graphs", &c.graphs,
      "Whether a step on GPUs is captured as one CUDA graph behind the first two, and replayed from then on, "
      "so that the host issues one call a step. The results are the same. Steps that are traced, or of "
      "which the host does a part, are not captured; the run says so."));
  keys.push_back(
      number("run.peak_tflops", &c.peak_tflops, {.min = 0.0, .max = 1e9},
             "10^12 operations a second that one rank's device reaches at best in the type of "
             "precision.parameters: what model FLOPs utilisation is a share of. 0: by the data sheet "
             "of a GPU that is known; of any other device no share is given. `tessera simulate` takes it "
             "where no --peak-gflops is given; 0: --gflops."));
  keys.push_back(integer("run.threads_per_rank", &c.threads_per_rank, 1, "Compute threads of one rank.",
                         EngineOptions::kMostThreads));
  keys.push_back(
      boolean("run.pin", &c.pin,
              "Whether each rank keeps to its share of the cores, where there are as many as ranks. "
              "Ranks that mpirun starts stay where it puts them."));
  keys.push_back(bytes("run.device_memory", &c.device_memory,
                       "The budget of one rank; a run that would exceed it is refused. 0: none."));
  keys.push_back(
      bytes("run.host_memory", &c.host_memory,
            "Likewise, of what one rank keeps on the host by [offload]. It bounds that alone, also where the "
            "device is the CPU and run.device_memory a part of the same memory. 0: none."));
  keys.push_back(number(
      "run.deadline", &c.deadline, {.min = 0.001, .max = 1e6},
      "Seconds that a rank waits for another before the run ends with an error; at least 1800 while "
      "checkpoints and exports are written, also where a step's update waits for that, and 60 for MPI to "
      "start."));
  keys.push_back(
      text("run.metrics", &c.metrics,
           "A file for one line of JSON per step and evaluation (docs/tool.md). A run from "
           "step 0 begins it anew. Of one run at a time: another is refused while it writes there. Empty: "
           "none."));
  keys.push_back(text(
      "run.tensorboard", &c.tensorboard,
      "A folder for TensorBoard's event files: the metrics by step. A run that continues adds a file, and "
      "steps that it does again count once. Empty: none."));
  keys.push_back(text("run.trace", &c.trace,
                      "A file for the timeline of rank 0 (Chrome trace; Perfetto opens it). Empty: none."));
  keys.push_back(integer("run.trace_steps", &c.trace_steps, 1,
                         "Steps on the timeline, after the first two of the run where there are more.", 100));
  keys.push_back(
      text("run.sample_prompt", &c.sample_prompt,
           "What the sample text continues, as bytes; for tokens, their ids separated by commas."));
  keys.push_back(
      integer("run.sample_tokens", &c.sample_tokens, 0,
              "Tokens to sample at the end of the run; 0: none. Each follows from the last run.length tokens "
              "before it, also where model.context is longer."));
  keys.push_back(number("run.sample_temperature", &c.sample_temperature, {.min = 0.0, .max = 100.0},
                        "0 takes the most likely token; 1 draws from the model's distribution."));
}

}  // namespace

std::vector<OptimizerOptions> optimizer_defaults() {
  std::vector<OptimizerOptions> all;
  for (const std::string_view name : optimizer_names()) {
    OptimizerOptions& options = all.emplace_back(optimizer_options(name));
    std::visit([](auto& own) { own.weight_decay = 0.1; }, options);
    if (auto* adamw = std::get_if<AdamWOptions>(&options)) adamw->beta2 = 0.95;
    if (auto* adam = std::get_if<AdamOptions>(&options)) adam->beta2 = 0.95;
  }
  return all;
}

const OptimizerOptions& OptimizerConfig::chosen() const {
  for (const OptimizerOptions& each : options)
    if (name_of(each) == kind) return each;
  return options.front();
}
OptimizerOptions& OptimizerConfig::chosen() {
  return const_cast<OptimizerOptions&>(std::as_const(*this).chosen());
}

void assign(const Key& from, const Key& to) {
  std::visit([&](auto* target) { *target = **std::get_if<decltype(target)>(&from.target); }, to.target);
}

std::vector<std::string> optimizer_fields() {
  std::vector<std::string> names;
  for (OptimizerOptions& options : optimizer_defaults())
    for (const OptimizerField& field : fields_of(options))
      if (std::ranges::find(names, field.name) == names.end()) names.emplace_back(field.name);
  return names;
}

std::vector<std::string_view> optimizers_with(std::string_view name) {
  std::vector<std::string_view> names;
  for (OptimizerOptions& options : optimizer_defaults())
    if (find_field(options, name)) names.push_back(name_of(options));
  return names;
}

std::string family_of(const std::string& preset) {
  const std::vector<std::string> llama = LlamaConfig::presets();
  return std::ranges::find(llama, preset) != llama.end() ? "llama" : "gpt2";
}

std::string smallest_preset(const std::string& family) { return family + "-tiny"; }

std::vector<Key> keys_of(Config& config) {
  Keys keys;
  add_model(keys, config.model);
  add_lora(keys, config.lora);
  add_data(keys, config.data);
  add_mesh(keys, config.mesh);
  add_strategy(keys, config.strategy);
  add_numerics(keys, config.numerics);
  add_pipeline(keys, config.pipeline);
  add_offload(keys, config.offload);
  add_precision(keys, config.precision);
  add_optimizer(keys, config.optimizer);
  add_schedule(keys, config.schedule);
  add_run(keys, config.run);
  return keys;
}

}  // namespace tessera::cli
