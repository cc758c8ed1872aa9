#include "src/nn/split_head.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cross_entropy_chunks.h"
#include "src/nn/regions.h"
#include "src/nn/support.h"

namespace tessera::nn {
namespace {

enum SplitHeadValue : ValueId {
  kNorm,             // [stream rows, channels]
  kMean,             // [stream rows] fp32, as is the next
  kRstd,             //
  kNormWhole,        // [tokens, channels]: of all ranks' rows
  kLogits,           // [rows of a chunk, columns of this rank] fp32, then their gradients
  kLosses,           // [tokens] fp32
  kNormPartial,      // [tokens, channels] fp32: this rank's part of the gradient of the norm's output
  kNormSum,          // [own rows, channels] fp32
  kNormGradient,     // [own rows, channels]
  kNormGradientAll,  // [tokens, channels]: of all ranks' rows, where each has all rows of the residual stream
  kWeightSum,  // [columns of this rank, channels] fp32: the weight's gradient, where it is a sum over chunks
  kChunks      // statistics of the first chunk
};

}  // namespace

ValueId SplitHead::norm_of_all() const { return config_.sequence_parallel ? kNormWhole : kNorm; }
ValueId SplitHead::norm_gradient() const {
  return config_.sequence_parallel ? kNormGradient : kNormGradientAll;
}
ValueId SplitHead::statistics(int chunk) { return kChunks + 2 * chunk; }
ValueId SplitHead::all_statistics(int chunk) { return statistics(chunk) + 1; }

SplitHead::SplitHead(const TransformerConfig& config, const BatchShape& shape, const Target& target)
    : config_(config),
      target_(target),
      cached_(shape.cached > 0),
      tokens_(shape.tokens()),
      own_rows_(own_rows_of(config, shape, target)),
      stream_rows_(stream_rows_of(config, shape, target)),
      columns_(padded_part(config.token_rows, target.tensor)),
      chunk_rows_(kernels::rows_per_chunk({.rows = tokens_,
                                           .channels = config.channels,
                                           .vocabulary = columns_,
                                           .type = config.type,
                                           .chunk_bytes = config.logits_bytes},
                                          target.device)) {}

std::int64_t SplitHead::rows_of(int chunk) const {
  return std::min(chunk_rows_, tokens_ - chunk * chunk_rows_);
}

kernels::SoftmaxShape SplitHead::softmax(int chunk, int tensor_rank) const {
  return {.rows = rows_of(chunk),
          .columns = columns_,
          .first_column = columns_ * tensor_rank,
          .vocabulary = config_.vocabulary,
          .ranks = target_.tensor,
          .type = config_.type};
}

NormPass SplitHead::norm_of(const ModuleContext* context) const {
  NormPass pass = {
      .norm = config_.norm, .rows = stream_rows_, .channels = config_.channels, .type = config_.type};
  if (context == nullptr) return pass;
  pass.mean = static_cast<float*>(context->value(kMean));
  pass.rstd = static_cast<float*>(context->value(kRstd));
  return pass;
}

// In training all work is left to backward, so that the logits are computed once.
std::vector<SplitHead::Part> SplitHead::parts() const {
  if (cached_) return {{Step::norm, Pass::forward}, {Step::total, Pass::forward}};
  std::vector<Part> all;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    all.push_back({Step::norm, pass});
    for (int chunk = 0; chunk < chunks(); ++chunk) {
      all.push_back({Step::logits, pass, chunk});
      all.push_back({pass == Pass::forward ? Step::losses : Step::gradients, pass, chunk});
    }
    all.push_back({Step::total, pass});
  }
  all.push_back({Step::norm_sum, Pass::backward});
  all.push_back({Step::norm_gradient, Pass::backward});
  if (sums()) all.push_back({Step::weight_gradient, Pass::backward});
  return all;
}

IdVector<ValueSpec> SplitHead::values() const {
  const std::int64_t numel = own_rows_ * config_.channels, row_bytes = 4 * stream_rows_;
  const std::int64_t element = bytes_of(config_.type), ranks = target_.tensor;
  const bool all = !config_.sequence_parallel;
  const Held held = all ? Held::copied : Held::split;
  IdVector<ValueSpec> values = {
      {.name = "norm", .bytes = stream_rows_ * config_.channels * element, .held = held},
      {.name = "norm.mean", .bytes = config_.norm.kind == NormKind::layer ? row_bytes : 0, .held = held},
      {.name = "norm.rstd", .bytes = row_bytes, .held = held},
      {.name = "norm.whole",
       .bytes = all ? 0 : numel * element * ranks,
       .exchanged = all ? kNoValue : ValueId{kNorm}},
      {.name = "logits", .bytes = kernels::logits_bytes(softmax(0, 0), target_.device), .held = Held::split},
      {.name = "losses", .bytes = 4 * tokens_, .in_pieces = true},
      {.name = "norm.gradient.partial", .bytes = 4 * numel * ranks, .in_pieces = true, .held = Held::partial},
      {.name = "norm.gradient.sum", .bytes = 4 * numel, .held = Held::split, .exchanged = kNormPartial},
      {.name = "norm.gradient", .bytes = numel * element, .held = Held::split},
      {.name = "norm.gradient.all",
       .bytes = all ? numel * element * ranks : 0,
       .exchanged = all ? ValueId{kNormGradient} : kNoValue},
      {.name = "weight.sum",
       .bytes = sums() ? 4 * columns_ * config_.channels : 0,
       .in_pieces = true,
       .only_if_read = true,
       .held = Held::split}};
  for (int chunk = 0; chunk < chunks(); ++chunk) {
    const auto of_rank = static_cast<std::int64_t>(sizeof(kernels::SoftmaxStatistics)) * rows_of(chunk);
    values.push_back({.name = fmt::format("statistics.{}", chunk), .bytes = of_rank, .held = Held::split});
    values.push_back({.name = fmt::format("statistics.{}.all", chunk),
                      .bytes = of_rank * ranks,
                      .exchanged = statistics(chunk)});
  }
  if (!all)
    for (const ValueId made : {kNormWhole, kNormSum}) exchange_in_chunks(values, made, target_);
  return values;
}

PartSpec SplitHead::spec_of(const Part& part) const {
  const int chunk = part.chunk;
  const kernels::SoftmaxShape shape = softmax(chunk, 0);
  const kernels::LinearShape logits = kernels::logits_layer(shape, config_.channels, target_.device);
  const kernels::LinearShape gradients = kernels::gradients_layer(shape, config_.channels, target_.device);
  const double flops = 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
                       static_cast<double>(config_.channels);
  const auto numbered = [&](const char* name) { return fmt::format("{} {}", name, chunk); };
  PartSpec spec{.name = "norm", .pass = part.pass};
  switch (part.step) {
    case Step::norm:
      spec.reads = {kInput};
      spec.writes = {kNorm, kMean, kRstd};
      break;
    case Step::logits:
      spec.name = numbered("logits");
      spec.reads = {norm_of_all(), kBatch};
      spec.writes = {kLogits, statistics(chunk)};
      spec.workspace_bytes = kernels::linear_partial_workspace_bytes(logits, target_);
      spec.flops = flops;
      break;
    case Step::losses:
      spec.name = numbered("losses");
      spec.reads = {all_statistics(chunk), kBatch};
      spec.writes = {kLosses};
      break;
    case Step::total:
      spec.name = "total";
      spec.reads = {norm_of_all(), kBatch};
      if (!cached_) spec.reads.push_back(kLosses);
      spec.workspace_bytes =
          part.pass == Pass::forward ? logits_row_workspace_bytes(row_shape(0), target_) : 0;
      break;
    case Step::gradients:
      spec.name = numbered("loss");
      spec.reads = {norm_of_all(), kLogits, all_statistics(chunk), kBatch};
      spec.writes = {kLogits, kLosses, kNormPartial};
      if (sums())
        spec.writes.push_back(kWeightSum);
      else
        spec.gradients = std::vector<int>{static_cast<int>(weight())};
      spec.workspace_bytes = std::max(kernels::linear_partial_workspace_bytes(gradients, target_),
                                      kernels::linear_workspace_bytes(gradients, target_));
      spec.flops = 2 * flops;
      break;
    case Step::norm_sum:
      spec.name = "norm sum";
      spec.reads = {kNormSum};
      spec.writes = {kNormGradient};
      break;
    case Step::norm_gradient:
      spec.name = "norm gradient";
      spec.reads = {kInput, kMean, kRstd, norm_gradient()};
      spec.writes = {kInputGradient};
      spec.gradients = std::vector<int>();
      for (int parameter = 0; parameter < static_cast<int>(weight()); ++parameter)
        spec.gradients->push_back(parameter);
      spec.workspace_bytes = norm_workspace_bytes(norm_of(nullptr), target_);
      break;
    case Step::weight_gradient:
      spec.name = "weight gradient";
      spec.reads = {kWeightSum};
      spec.gradients = std::vector<int>{static_cast<int>(weight())};
      break;
  }
  spec.evaluation_only = part.pass == Pass::forward;
  if (part.pass == Pass::backward && !spec.gradients) spec.gradients = kNoGradients;
  return spec;
}

UnitGraph SplitHead::graph() const {
  UnitGraph graph;
  graph.values = values();
  graph.forward_only = cached_;
  for (const Part& part : parts()) graph.parts.push_back(spec_of(part));
  return graph;
}

void SplitHead::run(int part, const ModuleContext& context) const {
  const kernels::ComputeContext compute = compute_context(context);
  const Part running = parts()[static_cast<std::size_t>(part)];
  switch (running.step) {
    case Step::norm:
      return norm_forward(context, compute, norm_of(&context), 0,
                          {.input = context.value(kInput), .output = context.value(kNorm)});
    case Step::logits:
      return logits(running.chunk, context);
    case Step::losses:
      return losses(running.chunk, context);
    case Step::total:
      return total(context);
    case Step::gradients:
      return gradients(running.chunk, context);
    case Step::norm_sum:
      return kernels::finish_sum(
          compute, {.rows = own_rows_, .channels = config_.channels, .type = config_.type},
          static_cast<const float*>(context.value(kNormSum)), nullptr, context.value(kNormGradient));
    case Step::norm_gradient:
      return norm_backward(context, compute, norm_of(&context), 0,
                           {.input = context.value(kInput),
                            .output_gradient = context.value(norm_gradient()),
                            .input_gradient = context.value(kInputGradient)});
    case Step::weight_gradient:
      if (context.gradients[weight()] == nullptr) return;
      return kernels::add_sum(compute, {.rows = columns_, .channels = config_.channels, .type = config_.type},
                              static_cast<const float*>(context.value(kWeightSum)), context.betas[weight()],
                              context.gradients[weight()]);
  }
}

namespace {

const std::int32_t* targets_of(const ModuleContext& context, std::int64_t row) {
  return static_cast<const std::int32_t*>(context.batch) + context.shape.tokens() + row;
}

}  // namespace

// Where losses lie: with the trainer where it wants them.
float* SplitHead::losses_of(const ModuleContext& context) {
  return context.losses != nullptr ? context.losses : static_cast<float*>(context.value(kLosses));
}

void SplitHead::logits(int chunk, const ModuleContext& context) const {
  const kernels::ComputeContext compute = compute_context(context);
  const kernels::SoftmaxShape shape = softmax(chunk, context.tensor_rank);
  const std::int64_t first = chunk * chunk_rows_;
  auto* logits = static_cast<float*>(context.value(kLogits));
  kernels::linear_forward_partial(
      compute, kernels::logits_layer(shape, config_.channels, context.device),
      at(context.value(norm_of_all()), first * config_.channels * bytes_of(config_.type)),
      context.parameters[weight()], logits);
  kernels::softmax_statistics(compute, shape, logits, targets_of(context, first),
                              static_cast<kernels::SoftmaxStatistics*>(context.value(statistics(chunk))));
}

void SplitHead::losses(int chunk, const ModuleContext& context) const {
  if (context.total == nullptr) return;
  const std::int64_t first = chunk * chunk_rows_;
  kernels::softmax_losses(
      compute_context(context), softmax(chunk, context.tensor_rank),
      static_cast<const kernels::SoftmaxStatistics*>(context.value(all_statistics(chunk))),
      targets_of(context, first), losses_of(context) + first);
}

void SplitHead::total(const ModuleContext& context) const {
  const kernels::ComputeContext compute = compute_context(context);
  if (context.total != nullptr)
    kernels::total_loss(compute, tokens_, targets_of(context, 0), losses_of(context), context.total);
  if (context.logits != nullptr)
    write_logits_row(context, compute, row_shape(context.tensor_rank), context.value(norm_of_all()), weight(),
                     context.logits + columns_ * context.tensor_rank);
}

// This rank's columns of all rows; those that are padding have no logits.
kernels::CrossEntropyShape SplitHead::row_shape(int tensor_rank) const {
  return {.rows = tokens_,
          .channels = config_.channels,
          .vocabulary = std::clamp<std::int64_t>(config_.vocabulary - columns_ * tensor_rank, 0, columns_),
          .type = config_.type};
}

void SplitHead::gradients(int chunk, const ModuleContext& context) const {
  const kernels::ComputeContext compute = compute_context(context);
  const kernels::SoftmaxShape shape = softmax(chunk, context.tensor_rank);
  const std::int64_t first = chunk * chunk_rows_;
  auto* logits = static_cast<float*>(context.value(kLogits));
  kernels::softmax_gradients(
      compute, shape,
      {.statistics = static_cast<const kernels::SoftmaxStatistics*>(context.value(all_statistics(chunk))),
       .targets = targets_of(context, first),
       .scale = context.loss_scale,
       .scale_at = context.loss_scale_at,
       .logits = logits,
       .losses = static_cast<float*>(context.value(kLosses)) + first});
  const kernels::LinearShape layer = kernels::gradients_layer(shape, config_.channels, context.device);
  kernels::linear_backward_input_partial(
      compute, layer, logits, context.parameters[weight()],
      static_cast<float*>(context.value(kNormPartial)) + first * config_.channels);
  const void* input = at(context.value(norm_of_all()), first * config_.channels * bytes_of(config_.type));
  if (!sums() && context.gradients[weight()] != nullptr)
    kernels::linear_backward_weight(compute, layer, logits, input, context.betas[weight()],
                                    context.gradients[weight()]);
  if (void* sum = context.value(kWeightSum); sum != nullptr)
    kernels::linear_backward_weight_partial(compute, layer, logits, input, chunk == 0 ? 0.0f : 1.0f,
                                            static_cast<float*>(sum));
}

}  // namespace tessera::nn
