#include "src/nn/tensor_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/casts.h"
#include "kernels/reduce.h"
#include "src/nn/regions.h"
#include "src/nn/support.h"
#include "tessera/error.h"
#include "tessera/exact_sum.h"

namespace tessera::nn {
namespace {

void* moved(void* base, std::int64_t bytes) { return base == nullptr ? nullptr : at(base, bytes); }

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
  parts.reserve(static_cast<std::size_t>(count));
  for (int k = 0; k < count; ++k) parts.push_back(at(first, k * bytes));
  return parts;
}

}  // namespace

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
  std::shared_ptr<const Plan>& plan = plans_[{shape.sequences, shape.length, shape.cached, target.threads,
                                              target.device, target.tensor, target.gpu}];
  if (plan != nullptr) return plan;
  check_one_chunk("tensor_blocks", target);
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
  return {.activations = plan->graph.graph(),
          .masked_flops = plan->own * plan->of_block.masked_flops,
          .frozen_flops = plan->own * plan->of_block.frozen_flops};
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
      return add_blocks(*plan, step.value, context);
    case BlockedGraph::Step::Kind::gradients:
      return add_gradients(*plan, part, context);
  }
}

void BlockedModule::add_blocks(const Plan& plan, ValueId value, const ModuleContext& context) const {
  const auto& [in, stride] = plan.graph.lies(value);
  kernels::balanced_sum(
      compute_context(context), plan.graph.numel_of_sum(value), plan.of_block.activations.values[value].type,
      row_of(context.value(in), plan.own, stride),
      static_cast<float*>(context.value(plan.graph.sum_of(value))), static_cast<float*>(context.workspace));
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
