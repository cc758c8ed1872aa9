// Floor 7: the compute of a unit. A module declares its parameters, and its compute as values and parts; it
// runs one part at a time on pointers that it is given. It owns no tensor and never communicates.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/activations.h"
#include "tessera/device_type.h"
#include "tessera/id_vector.h"
#include "tessera/layout.h"
#include "tessera/lora.h"
#include "tessera/loss_total.h"
#include "tessera/numerics.h"
#include "tessera/pass.h"
#include "tessera/target.h"
#include "tessera/value_id.h"

namespace tessera {

// One microbatch on one rank.
struct BatchShape {
  std::int64_t sequences = 1;  // rows of the batch
  std::int64_t length = 1;     // tokens in each; 1 for models without sequences
  // Not 0: the next `length` tokens of sequences whose keys and values are kept from evaluation to
  // evaluation, with place for so many tokens (Keep::cached). Forward only.
  std::int64_t cached = 0;
  constexpr std::int64_t tokens() const { return sequences * length; }
  bool operator==(const BatchShape&) const = default;
};

// The initial values of a parameter. Each element is drawn from (seed, parameter name, index), so every world
// gets the same model.
struct Initial {
  enum class Kind : std::uint8_t { constant, normal, uniform } kind = Kind::constant;
  double value = 0.0;  // the constant, the standard deviation, or the bound of (−value, value)
  std::int64_t numel = std::numeric_limits<std::int64_t>::max();  // elements from here on, row-major, are 0
};

// The arguments of one part of a module. Pointers are to memory of the device and 256-byte aligned; those of
// pieces of values are aligned as their offsets are. On the CPU those of a block (with_tensor_blocks()) may
// be aligned to their elements only.
struct ModuleContext {
  Pass pass = Pass::forward;
  StepKind kind = StepKind::train;
  BatchShape shape;
  int threads = 1;
  DeviceType device = DeviceType::cpu;
  void* stream = nullptr;  // the compute lane's cudaStream_t; null on the CPU
  int tensor_ranks = 1;    // among which the layer is split; this one's number is tensor_rank
  int tensor_rank = 0;
  int exchange_chunks = 1;            // TrainerOptions::exchange_chunks
  std::span<void* const> parameters;  // in the order of Module::parameters(), whole
  // Backward only, in the same order: where to write the gradient of loss_scale · Σ loss (the sum over
  // tokens, not the mean), in the parameter's type; null for a frozen parameter, and for one that the part is
  // not for (PartSpec::gradients). Overwrite where betas[i] is 0 (the memory holds garbage), add where it
  // is 1.
  std::span<void* const> gradients;
  std::span<const float> betas;
  // By ValueId, the module's own values; null for one that the part does not touch. value() also gives those
  // that units share: the input is null for the first unit, the output in a recompute.
  std::span<void* const> values;
  // A part writes only what it says that it writes.
  void* input = nullptr;
  void* output = nullptr;
  void* output_gradient = nullptr;
  void* input_gradient = nullptr;
  void* workspace = nullptr;  // PartSpec::workspace_bytes, for this call only
  std::int64_t workspace_bytes = 0;
  void* batch = nullptr;  // the microbatch as the model lays it out, see Model::batch_bytes
  // Random values of a training step, such as dropout, must depend only on these two (by tessera/philox.h)
  // and on positions in the batch. Then they are the same in every pass of a microbatch, and on every mesh
  // that trains on the same samples.
  std::uint64_t random_key = 0;     // random_key(random_seed, random_stream, updates applied so far)
  std::uint64_t random_seed = 0;    // TrainerOptions::seed
  std::uint64_t random_stream = 0;  // the unit's
  std::int64_t first_sequence = 0;  // number of the batch's first row among the step's, see SampleGrid
  float loss_scale = 1.0f;
  // On a GPU, in its memory: the updates applied so far, and the loss scale. Kernels read them there, as a
  // step that was captured is done again with others (Engine::next_step()). Null elsewhere, and in an
  // evaluation.
  const std::int64_t* updates_at = nullptr;
  const float* loss_scale_at = nullptr;
  // The last module writes its sums here: in the last part of backward that reads the batch or, in an
  // evaluation, of forward. If it is null in an evaluation, no losses are needed.
  LossTotal* total = nullptr;
  // For generation. If not null, the last module's forward in an evaluation also writes here the logits,
  // [vocabulary] fp32, of row `logits_row` of [sequences · length]. Of several tensor ranks, rank k writes
  // the k-th of as many equal parts, the last of which may be shorter (Cut::padded).
  float* logits = nullptr;
  std::int64_t logits_row = 0;
  // If not null in an evaluation that has `total`, the last module also writes here the loss of each row,
  // [sequences · length] fp32, 0 for a row without target. Every tensor rank writes all of them.
  float* losses = nullptr;
  // Where BatchShape::cached is not 0: the tokens of each sequence before the batch's first. There is place
  // for all of the batch behind them. `total` is then null, and so is `logits` unless the next token is
  // wanted.
  std::int64_t position = 0;

  void* value(ValueId id) const;
};

// What a module needs for one microbatch. All bytes are exact, because the memory plan is made of them. They
// hold for the target that they were asked for.
struct ModuleNeeds {
  UnitGraph activations;
  double masked_flops = 0;  // operations that the causal mask saves; not counted in PartSpec::flops
  double frozen_flops = 0;  // likewise, of backward, those that frozen parameters save
};

class Module {
 public:
  virtual ~Module() = default;

  virtual std::vector<ParameterSpec> parameters() const = 0;
  // Whether backward and recompute do not read the parameters, see UnitSpec::read_in_forward_only. Their
  // pointers are then null in these passes.
  virtual bool parameters_read_in_forward_only() const { return false; }
  // One per parameter; ignored for tied ones.
  virtual std::vector<Initial> initials() const = 0;
  virtual ModuleNeeds needs(const BatchShape& shape, const Target& target) const = 0;
  // In words, all that enters the bits of what the module computes for such a microbatch, beside its
  // parameters and the random key: what it is, and every field that it was made with. Two modules of equal
  // words compute the same. Empty: not known, so that nothing is promised of runs with it.
  virtual std::string numerics(const BatchShape& shape, const Target& target) const;

  // Runs that part of needs().activations, in a pass that context.pass names: its own, or a recompute. There
  // it gives the bits that it gave in forward. In a training step the last module may leave all its work to
  // backward, which follows at once.
  virtual void run(int part, const ModuleContext& context) = 0;
};

// How NVIDIA counts what a GPU can do: 9.0 is Hopper.
struct ComputeCapability {
  int major = 0, minor = 0;
  auto operator<=>(const ComputeCapability&) const = default;
};

// A chain of modules: unit u is modules[u], and its output is the input of unit u + 1.
struct Model {
  std::string name;
  IdVector<std::string> names;  // names of the units
  IdVector<std::unique_ptr<Module>> modules;
  std::vector<std::string> groups = {"decay", "no_decay"};  // ParameterSpec::group is an index into these
  std::vector<double> rate_factors = {1.0, 1.0};  // of each group: times the schedule's learning rate
  Lora lora;                                      // the adapters of its blocks
  // Bytes of one microbatch: inputs and targets as the first and last module expect them.
  std::function<std::int64_t(const BatchShape& shape)> batch_bytes;
  std::int64_t vocabulary = 0;  // 0 where the model has no tokens
  std::int64_t token_rows = 0;  // of the embedding and the head: the vocabulary, and padding
  std::int64_t max_length = 1;  // the longest sequence it takes
  int tensor_blocks = 1;        // see with_tensor_blocks()
  ComputeCapability least_gpu;  // of a GPU that computes its modules

  std::vector<UnitSpec> units() const;
  ActivationSpec activations(const BatchShape& shape, const Target& target) const;
  // Operations of matrix products in a microbatch's forward, by unit.
  IdVector<double> forward_flops(const BatchShape& shape, const Target& target) const;
  // The same by unit and part, as CostModel::part_flops.
  IdVector<IdVector<double>> part_flops(const BatchShape& shape, const Target& target) const;
  // The fact of the seed, from which weights begin and modules draw.
  static constexpr std::string_view kSeed = "the seed";
  // EngineOptions::compute of a trainer with such a microbatch and seed.
  std::vector<NumericFact> numerics(const BatchShape& shape, const Target& target, std::uint64_t seed) const;
  std::int64_t parameter_numel() const;  // ties counted once
  std::int64_t trained_numel() const;    // of these, those that are not frozen
  // Operations of a training step per token, for sequences of `length` tokens, as model FLOPs utilisation
  // counts them (Chowdhery et al. 2022, PaLM, appendix B): 6N + 12 · layers · channels · length. N counts the
  // parameters that activations are multiplied by, which excludes embeddings that are looked up, biases and
  // norms. Operations that the causal mask saves are included; recomputation, and what frozen parameters
  // save, are not. UsageError for a length
  // that the model does not take.
  double flops_per_token(std::int64_t length) const;
};

// The same model, which computes the same bits on any number of tensor ranks that divides `blocks`: each rank
// does, one after the other, what blocks / ranks of so many ranks would do, and sums over blocks are balanced
// trees. That needs exact reductions (Strategy::reduction). 1 changes nothing. Blocks are a power of two that
// the model's layers can be cut into. They cost time, as products are smaller, and memory for what each block
// makes of a sum. Throws UsageError for another number, for a model that has blocks, and, naming it, for a
// parameter of which a block has no multiple of 64 elements.
Model with_tensor_blocks(Model model, int blocks);

}  // namespace tessera
