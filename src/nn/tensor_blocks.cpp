#include "src/nn/tensor_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/casts.h"
#include "kernels/reduce.h"
#include "src/nn/support.h"
#include "tessera/error.h"
#include "tessera/exact_sum.h"

namespace tessera::nn {
namespace {

// Whether each of several ranks makes a part of the gradient of a parameter that all of them have.
bool in_parts(const ParameterSpec& parameter) {
  return parameter.trainable && parameter.cut.dim < 0 && parameter.gradient == GradientOver::partial;
}

std::int64_t scratch_bytes(int contributions, std::int64_t numel) {
  return kernels::balanced_scratch(contributions) * numel * bytes_of(DType::fp32);
}

void* moved(void* base, std::int64_t bytes) {
  return base == nullptr ? nullptr : static_cast<char*>(base) + bytes;
}

// What the call returns; its errors, which speak of ranks, say that these are blocks.
template <class Call>
auto as_blocks(int blocks, const Call& call) {
  try {
    return call();
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("tensor_blocks is {}, so that layers are cut as on {} tensor ranks: {}",
                                 blocks, blocks, error.what()));
  }
}

// `count` parts, one behind the other.
std::vector<const void*> row_of(const void* first, int count, std::int64_t bytes) {
  std::vector<const void*> parts;
  for (int k = 0; k < count; ++k) parts.push_back(static_cast<const char*>(first) + k * bytes);
  return parts;
}

}  // namespace

BlockedGraph::BlockedGraph(const UnitGraph& inner, const std::vector<ParameterSpec>& parameters, int blocks,
                           int ranks)
    : inner_(inner), parameters_(parameters), blocks_(blocks), ranks_(ranks) {
  graph_.output_bytes = inner.output_bytes * own();
  graph_.keeps_more = inner.keeps_more;
  inner.check("a tensor block", blocks);
  check_aliases();
  place_values();
  place_gradients();
  place_parts();
  keep_what_is_read();
}

ValueId BlockedGraph::add(ValueSpec value) {
  graph_.values.push_back(std::move(value));
  return graph_.values.count() - 1;
}

// Which inner values' blocks must follow each other without a gap: those that an exchange takes, or that lie
// in the memory of one. The others begin at aligned places.
IdVector<bool> BlockedGraph::in_a_row() const {
  IdVector<bool> result(inner_.values.count(), false);
  for (const ValueSpec& value : inner_.values)
    if (value.exchanged >= 0) result[inner_.root(value.exchanged)] = true;
  return result;
}

void BlockedGraph::place_values() {
  lies_.resize(inner_.values.size());
  sums_ = IdVector<ValueId>(inner_.values.count(), kNoValue);
  const IdVector<bool> rows = in_a_row();
  const auto lies = [&](ValueId id) { return id < 0 ? id : lies_[id].in; };
  for (ValueId id = 0; id < inner_.values.count(); ++id) {
    ValueSpec value = inner_.values[id];
    const ValueId of = value.exchanged;
    if (of >= 0 && own() > 1 && inner_.values[of].held == Held::split &&
        lies_[of].stride != inner_.values[of].bytes)
      throw UsageError(
          fmt::format("value '{}' of a block is exchanged, and shares memory with one of other size",
                      inner_.values[of].name));
    if (of != kNoValue && value.held == Held::copied) {
      // Alone, a rank has all parts, one behind the other.
      value.exchanged = lies(of);
      lies_[id] = {.in = ranks_ > 1 ? add(value) : value.exchanged};
    } else if (of != kNoValue) {
      lies_[id].stride = value.bytes;
      lies_[id].in = sums_[of];
      if (ranks_ == 1) continue;
      value.bytes *= own();
      value.exchanged = sums_[of] != kNoValue ? sums_[of] : lies(of);
      lies_[id].in = add(std::move(value));
    } else {
      const bool sums = value.held == Held::partial && (own() > 1 || value.type != DType::fp32);
      const ValueId root = inner_.root(id);
      const std::int64_t bytes = inner_.values[root].bytes;
      lies_[id].stride = rows[root] ? bytes : round_up(bytes, kAlignmentBytes);
      if (value.bytes > 0) value.bytes += (own() - 1) * lies_[id].stride;
      if (value.over != kNoValue) value.over = lies(value.over);
      ValueSpec sum = {.name = value.name + ".own",
                       .bytes = inner_.values[id].bytes / bytes_of(value.type) * bytes_of(DType::fp32),
                       .keep = value.keep,
                       .held = ranks_ > 1 ? Held::partial : Held::copied};
      if (sums) value.held = Held::split;
      lies_[id].in = add(std::move(value));
      if (sums) sums_[id] = add(std::move(sum));
    }
  }
}

// Several ranks read a copy that an exchange has made of a value, in each pass anew; a rank alone reads the
// value itself.
void BlockedGraph::check_aliases() const {
  if (ranks_ > 1) return;
  for (ValueId id = 0; id < inner_.values.count(); ++id) {
    const ValueId of = inner_.values[id].exchanged;
    if (of < 0 || inner_.values[id].held != Held::copied) continue;
    for (const bool backward : {false, true}) {
      bool read = false, changed = false;
      for (const PartSpec& part : inner_.parts) {
        if (is_of_backward(part.pass) != backward) continue;
        if (changed && part.reads_value(id))
          throw UsageError(
              fmt::format("a part changes value '{}' before part '{}' reads what was gathered of it; tensor "
                          "blocks on one rank need it as it was",
                          inner_.values[of].name, part.name));
        read |= part.reads_value(id);
        changed |= read && part.writes_value(of);
      }
    }
  }
}

void BlockedGraph::place_gradients() {
  gradients_.resize(parameters_.size());
  for (int place = 0; place < gradients_.count(); ++place) {
    const ParameterSpec& parameter = parameters_[static_cast<std::size_t>(place)];
    if (!in_parts(parameter)) continue;
    const auto writes = [&](const PartSpec& part) {
      return part.pass == Pass::backward && part.writes_gradient(place);
    };
    const auto first = std::ranges::find_if(inner_.parts, writes);
    if (first == inner_.parts.end()) continue;
    const std::int64_t numel = numel_of(parameter.shape);
    const std::int64_t bytes = round_up(numel * bytes_of(parameter.dtype), kAlignmentBytes);
    Parts& of = gradients_[place];
    of = {.numel = numel,
          .stride = bytes,
          .type = parameter.dtype,
          .first_part = static_cast<int>(first - inner_.parts.begin())};
    of.parts = add({.name = parameter.name + ".gradient.parts", .bytes = own() * bytes, .held = Held::split});
    of.all = ranks_ == 1 ? of.parts
                         : add({.name = parameter.name + ".gradient.all",
                                .bytes = blocks_ * bytes,
                                .exchanged = of.parts});
  }
}

std::vector<ValueId> BlockedGraph::renamed(const std::vector<ValueId>& ids) const {
  std::vector<ValueId> result;
  for (const ValueId id : ids) {
    const ValueId in = id < 0 ? id : lies_[id].in;
    if (std::ranges::find(result, in) == result.end()) result.push_back(in);
  }
  return result;
}

void BlockedGraph::place_parts() {
  const auto last_that = [&](Pass pass, const auto& does) {
    int last = -1;
    for (int part = 0; part < inner_.parts.count(); ++part)
      if (inner_.parts[part].pass == pass && does(inner_.parts[part])) last = part;
    return last;
  };
  for (int id = 0; id < inner_.parts.count(); ++id) {
    const PartSpec& inner = inner_.parts[id];
    PartSpec part = inner;
    part.reads = renamed(inner.reads);
    part.writes = renamed(inner.writes);
    part.flops *= own();
    std::vector<int> added;  // the parameters of whose gradients this makes the last parts
    if (is_of_backward(inner.pass)) {
      part.gradients = std::vector<int>();
      for (int place = 0; place < gradients_.count(); ++place) {
        if (!inner.writes_gradient(place)) continue;
        const Parts& parts = gradients_[place];
        if (parts.numel == 0) {
          part.gradients->push_back(place);
        } else if (inner.pass == Pass::backward) {
          part.writes.push_back(parts.parts);
          if (id != parts.first_part) part.reads.push_back(parts.parts);
          if (id == last_that(inner.pass, [&](const PartSpec& of) { return of.writes_gradient(place); }))
            added.push_back(place);
        }
      }
      // What it would make apart is a sum of its own.
      if (inner.pass == Pass::weight_gradient && part.gradients->empty()) continue;
    }
    graph_.parts.push_back(std::move(part));
    steps_.push_back({.kind = Step::Kind::part, .part = id});
    std::vector<ValueId>& aliases = aliases_.emplace_back();
    for (const ValueId read : inner.reads)
      if (ranks_ == 1 && read >= 0 && inner_.values[read].exchanged != kNoValue)
        aliases.push_back(lies_[read].in);
    for (const ValueId value : inner.writes) {
      if (value < 0 || sums_[value] == kNoValue) continue;
      if (id != last_that(inner.pass, [&](const PartSpec& of) { return of.writes_value(value); })) continue;
      const ValueSpec& of = inner_.values[value];
      const std::int64_t numel = of.bytes / bytes_of(of.type);
      PartSpec sum = {.name = of.name + " sum",
                      .pass = inner.pass,
                      .reads = {lies_[value].in},
                      .writes = {sums_[value]},
                      .workspace_bytes = scratch_bytes(own(), numel),
                      .evaluation_only = inner.evaluation_only};
      if (is_of_backward(inner.pass)) sum.gradients = kNoGradients;
      graph_.parts.push_back(std::move(sum));
      steps_.push_back({.kind = Step::Kind::sum,
                        .part = id,
                        .from = lies_[value].in,
                        .to = sums_[value],
                        .numel = numel,
                        .stride = lies_[value].stride,
                        .type = of.type});
      aliases_.emplace_back();
    }
    if (added.empty()) continue;
    PartSpec sum = {.name = inner.name + " sums", .pass = inner.pass, .gradients = added};
    for (const int place : added) {
      const Parts& parts = gradients_[place];
      sum.reads.push_back(parts.all);
      sum.workspace_bytes = std::max(
          sum.workspace_bytes, parts.numel * bytes_of(DType::fp32) + scratch_bytes(blocks_, parts.numel));
    }
    graph_.parts.push_back(std::move(sum));
    steps_.push_back({.kind = Step::Kind::gradients, .part = id});
    aliases_.emplace_back();
  }
}

// Where a rank is alone, parts read the value that others read an exchange's copy of: nothing may be written
// over it before.
void BlockedGraph::keep_what_is_read() {
  for (ValueId id = 0; id < graph_.values.count(); ++id) {
    const ValueId below = graph_.values[id].over;
    if (below == kNoValue) continue;
    bool gone = false, read = false;
    for (int part = 0; part < graph_.parts.count(); ++part) {
      const PartSpec& of = graph_.parts[part];
      read |= gone && of.reads_value(below);
      gone |= of.writes_value(id);
      // Its first block would write over what its second reads.
      read |= of.writes_value(id) && std::ranges::find(aliases_[part], below) != aliases_[part].end();
    }
    if (read) graph_.values[id].over = kNoValue;
  }
}

struct BlockedModule::Plan {
  Plan(ModuleNeeds needs, const std::vector<ParameterSpec>& parameters, int blocks, int ranks,
       std::int64_t input)
      : of_block(std::move(needs)),
        graph(of_block.activations, parameters, blocks, ranks),
        own(blocks / ranks),
        input_bytes(input) {}

  const ModuleNeeds of_block;
  const BlockedGraph graph;
  const int own;                   // blocks of a rank
  const std::int64_t input_bytes;  // of a block
};

BlockedModule::BlockedModule(std::unique_ptr<Module> inner, const BlockedModule* before, int blocks)
    : inner_(std::move(inner)), before_(before), blocks_(blocks), parameters_(inner_->parameters()) {
  for (const ParameterSpec& parameter : parameters_) {
    std::int64_t& bytes = block_bytes_.emplace_back(0);
    if (parameter.cut.dim < 0) continue;
    const std::int64_t numel = as_blocks(
        blocks, [&] { return TensorShares(parameter.name, parameter.shape, parameter.cut, blocks).numel(); });
    bytes = numel * bytes_of(parameter.dtype);
    if (parameter.trainable && numel % kSquareBlock != 0)
      throw UsageError(fmt::format(
          "tensor_blocks is {}: a block of parameter '{}' has {} elements; it must have a multiple "
          "of {}, so that the gradients' norm is one sum on any number of ranks",
          blocks, parameter.name, numel, kSquareBlock));
  }
}

std::vector<ParameterSpec> BlockedModule::parameters() const {
  std::vector<ParameterSpec> specs = parameters_;
  for (ParameterSpec& spec : specs) {
    if (spec.cut.dim >= 0) spec.cut.blocks = blocks_;
    spec.gradient = GradientOver::copied;
  }
  return specs;
}

std::shared_ptr<const BlockedModule::Plan> BlockedModule::plan_of(const BatchShape& shape,
                                                                  const Target& target) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Plan>& plan =
      plans_[{shape.sequences, shape.length, target.threads, target.device, target.tensor}];
  if (plan != nullptr) return plan;
  if (target.tensor < 1 || blocks_ % target.tensor != 0)
    throw UsageError(fmt::format(
        "tensor_blocks is {} and there are {} tensor ranks: each has as many blocks, so make tensor_blocks a "
        "multiple of the ranks",
        blocks_, target.tensor));
  const auto needs = [&](const BlockedModule& of) {
    return as_blocks(blocks_, [&] { return of.inner_->needs(shape, of_block(target)); });
  };
  const std::int64_t input = before_ == nullptr ? 0 : needs(*before_).activations.output_bytes;
  auto made = std::make_shared<const Plan>(needs(*this), parameters_, blocks_, target.tensor, input);
  if (target.device != DeviceType::cpu && made->own > 1) check_aligned(*made);
  return plan = std::move(made);
}

// Kernels of GPUs count on it.
void BlockedModule::check_aligned(const Plan& plan) const {
  const auto check = [&](const std::string& name, std::int64_t bytes) {
    if (bytes % kAlignmentBytes != 0)
      throw UsageError(fmt::format(
          "tensor_blocks is {}: a block of '{}' has {} bytes; on a GPU it must have a multiple of {}",
          blocks_, name, bytes, kAlignmentBytes));
  };
  for (std::size_t place = 0; place < parameters_.size(); ++place)
    check(parameters_[place].name, block_bytes_[place]);
  for (ValueId value = 0; value < plan.graph.inner_values(); ++value)  // those that exchanges take
    check(plan.of_block.activations.values[value].name, plan.graph.lies(value).stride);
  check("output", plan.of_block.activations.output_bytes);
}

ModuleNeeds BlockedModule::needs(const BatchShape& shape, const Target& target) const {
  const std::shared_ptr<const Plan> plan = plan_of(shape, target);
  return {.activations = plan->graph.graph(), .masked_flops = plan->own * plan->of_block.masked_flops};
}

std::string BlockedModule::numerics(const BatchShape& shape, const Target& target) const {
  const std::string words = inner_->numerics(shape, of_block(target));
  return words.empty() ? words : words + ", each a block";
}

void BlockedModule::run(int part, const ModuleContext& context) {
  const std::shared_ptr<const Plan> plan =
      plan_of(context.shape, {context.threads, context.device, context.tensor_ranks});
  const BlockedGraph::Step& step = plan->graph.step(part);
  switch (step.kind) {
    case BlockedGraph::Step::Kind::part:
      return run_blocks(*plan, step.part, context);
    case BlockedGraph::Step::Kind::sum:
      return kernels::balanced_sum(compute_context(context), step.numel, step.type,
                                   row_of(context.value(step.from), plan->own, step.stride),
                                   static_cast<float*>(context.value(step.to)),
                                   static_cast<float*>(context.workspace));
    case BlockedGraph::Step::Kind::gradients:
      return add_gradients(*plan, part, context);
  }
}

void BlockedModule::run_blocks(const Plan& plan, int part, const ModuleContext& context) {
  ModuleContext block = context;
  std::vector<void*> parameters(context.parameters.begin(), context.parameters.end());
  std::vector<void*> gradients(parameters.size());
  std::vector<float> betas(context.betas.begin(), context.betas.end());
  IdVector<void*> values(plan.graph.inner_values());
  block.parameters = parameters;
  block.gradients = gradients;
  block.betas = betas;
  block.values = values;
  block.tensor_ranks = blocks_;
  for (int own = 0; own < plan.own; ++own) {
    block.tensor_rank = context.tensor_rank * plan.own + own;
    for (std::size_t place = 0; place < parameters.size(); ++place) {
      const std::int64_t offset = own * block_bytes_[place];
      parameters[place] = moved(context.parameters[place], offset);
      const BlockedGraph::Parts& parts = plan.graph.gradients()[place];
      if (parts.numel > 0) {
        gradients[place] = moved(context.value(parts.parts), own * parts.stride);
        betas[place] = part == parts.first_part ? 0.0f : 1.0f;
      } else {
        // All blocks make the same gradient of a parameter that is not cut.
        const bool writes = own == 0 || parameters_[place].cut.dim >= 0;
        gradients[place] = writes ? moved(context.gradients[place], offset) : nullptr;
      }
    }
    for (ValueId value = 0; value < values.count(); ++value) {
      const auto& [in, stride] = plan.graph.lies(value);
      values[value] = moved(context.value(in), own * stride);
    }
    const std::int64_t input = own * plan.input_bytes;
    const std::int64_t output = own * plan.of_block.activations.output_bytes;
    block.input = moved(context.input, input);
    block.input_gradient = moved(context.input_gradient, input);
    block.output = moved(context.output, output);
    block.output_gradient = moved(context.output_gradient, output);
    inner_->run(part, block);
  }
}

void BlockedModule::add_gradients(const Plan& plan, int part, const ModuleContext& context) const {
  const kernels::ComputeContext compute = compute_context(context);
  for (const int place : *plan.graph.graph().parts[part].gradients) {
    void* const gradient = context.gradients[static_cast<std::size_t>(place)];
    if (gradient == nullptr) continue;
    const BlockedGraph::Parts& parts = plan.graph.gradients()[place];
    auto* const sum = static_cast<float*>(context.workspace);
    kernels::balanced_sum(compute, parts.numel, parts.type,
                          row_of(context.value(parts.all), blocks_, parts.stride), sum, sum + parts.numel);
    if (context.betas[static_cast<std::size_t>(place)] != 0.0f)
      kernels::accumulate(compute, parts.numel, parts.type, gradient, 1.0f, sum);
    kernels::cast(compute, parts.numel, DType::fp32, sum, parts.type, gradient);
  }
}

}  // namespace tessera::nn

namespace tessera {

Model with_tensor_blocks(Model model, int blocks) {
  if (blocks < 1 || !std::has_single_bit(static_cast<unsigned>(blocks)))
    throw UsageError(fmt::format("tensor_blocks is {}; it must be a power of two, 1 for no blocks", blocks));
  if (model.tensor_blocks != 1)
    throw UsageError(fmt::format("model '{}' has {} tensor blocks already", model.name, model.tensor_blocks));
  if (blocks == 1) return model;
  model.tensor_blocks = blocks;
  const nn::BlockedModule* before = nullptr;
  for (std::unique_ptr<Module>& module : model.modules) {
    auto blocked = std::make_unique<nn::BlockedModule>(std::move(module), before, blocks);
    before = blocked.get();
    module = std::move(blocked);
  }
  return model;
}

}  // namespace tessera
