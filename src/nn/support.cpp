#include "src/nn/support.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/error.h"
#include "tessera/operand.h"

namespace tessera::nn {

void check_dim(std::string_view model, std::string_view field, std::int64_t value) {
  if (value < 1 || value >= kMostPerDim)
    throw UsageError(fmt::format("{}: {} is {}; it must be 1 or more, and below 2^31", model, field, value));
}

void check_type(std::string_view model, DType type) {
  if (type == DType::fp16)
    throw UnsupportedError(fmt::format("{}: its modules do not compute in fp16; use fp32 or bf16", model));
}

std::int64_t part_of(std::string_view model, std::string_view what, std::int64_t count, int ranks) {
  if (count % ranks != 0)
    throw UsageError(
        fmt::format("{}: mesh.tensor is {}, but {} is {}; the tensor ranks must have equal parts of it",
                    model, ranks, what, count));
  return count / ranks;
}

void check_one_chunk(std::string_view what, const Target& target) {
  if (target.exchange_chunks != 1)
    throw UsageError(fmt::format("{}: exchange_chunks is {}, and it exchanges values whole; set it to 1",
                                 what, target.exchange_chunks));
}

ValueId add_pieces(IdVector<ValueSpec>& values, ValueId of, std::int64_t bytes, int chunks) {
  const ValueId first = values.count();
  const std::string name = of >= 0 ? values[of].name : std::string(name_of(role_of(of)));
  const Held held = of >= 0 ? values[of].held : Held::split;
  const DType type = of >= 0 ? values[of].type : DType::fp32;
  for (int chunk = 0; chunk < chunks; ++chunk)
    values.push_back({.name = fmt::format("{}.{}", name, chunk),
                      .bytes = bytes / chunks,
                      .held = held,
                      .type = type,
                      .piece_of = of,
                      .begin = chunk * (bytes / chunks)});
  return first;
}

void exchange_in_chunks(IdVector<ValueSpec>& values, ValueId made, const Target& target) {
  const int chunks = target.exchange_chunks;
  if (chunks == 1) return;
  const ValueId of = values[made].exchanged;
  const auto pieces = [&](ValueId value, std::int64_t bytes) {
    const auto found = std::ranges::find(values, value, &ValueSpec::piece_of);
    if (found != values.end()) return static_cast<ValueId>(found - values.begin());
    return add_pieces(values, value, bytes, chunks);
  };
  values[made].exchanged = kNoValue;
  const ValueId from = pieces(of, of >= 0 ? values[of].bytes : values[made].bytes / target.tensor);
  const ValueId to = pieces(made, values[made].bytes);
  for (int chunk = 0; chunk < chunks; ++chunk) values[to + chunk].exchanged = from + chunk;
}

std::string words_of_ranks(const Target& target, bool sequence_parallel) {
  if (target.tensor == 1) return "";
  std::string words = fmt::format(", on {} tensor ranks", target.tensor);
  // Up to three parts have one order, whether they are added as a chain or as a tree.
  if (target.tensor > 3) words += ", which are added as a tree";
  if (target.exchange_chunks > 1)
    words += fmt::format(", each with rows of {} chunks", target.exchange_chunks);
  if (!sequence_parallel) words += ", each with all rows";
  return words;
}

std::uint32_t dropout_threshold(std::string_view model, std::string_view field, double share) {
  if (!(share >= 0.0 && share < 1.0))
    throw UsageError(fmt::format("{}: {} is {}; it must be 0 or more, and below 1", model, field, share));
  return kernels::dropout_threshold(share);
}

kernels::Dropout dropout_of(const ModuleContext& context, std::uint32_t threshold, std::int64_t matrix) {
  return {.threshold = context.kind == StepKind::train ? threshold : 0,
          .key = context.random_key,
          .matrix = static_cast<std::uint32_t>(matrix),
          .first_sequence = static_cast<std::uint32_t>(context.first_sequence),
          .key_at = {
              .seed = context.random_seed, .stream = context.random_stream, .updates = context.updates_at}};
}

kernels::ComputeContext compute_context(const ModuleContext& context) {
  return {.threads = context.threads,
          .workspace = {.data = context.workspace, .bytes = context.workspace_bytes},
          .device = context.device,
          .stream = context.stream};
}

void linear_parameter_gradients(const ModuleContext& context, const kernels::ComputeContext& compute,
                                const LinearGradients& arguments) {
  const std::size_t weight = arguments.weight;
  const std::size_t bias = weight + 1;
  if (context.gradients[weight] != nullptr)
    kernels::linear_backward_weight(compute, arguments.shape, arguments.output_gradient, arguments.input,
                                    context.betas[weight], context.gradients[weight]);
  if (arguments.bias && context.gradients[bias] != nullptr)
    kernels::linear_backward_bias(compute, arguments.shape, arguments.output_gradient, context.betas[bias],
                                  context.gradients[bias]);
}

}  // namespace tessera::nn
