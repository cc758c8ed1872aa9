#include "src/nn/transformer.h"

#include <fmt/format.h>

#include "kernels/kernels.h"
#include "src/nn/amended.h"
#include "src/nn/regions.h"
#include "src/nn/support.h"
#include "tessera/error.h"

namespace tessera::nn {

void check_fp8_type(const TransformerConfig& config) {
  if (config.fp8_products && config.type != DType::bf16)
    throw UsageError(
        fmt::format("{}: fp8_products (precision.products) is set, and the type is {}; what is multiplied in "
                    "fp8 is bf16 elsewhere",
                    config.model, name_of(config.type)));
}

void check_batch(const TransformerConfig& config, const BatchShape& shape) {
  check_dim(config.model, "sequences of a microbatch", shape.sequences);
  if (shape.length < 1 || shape.length > config.context)
    throw UsageError(fmt::format("{}: length of a microbatch is {}; it must be 1 to context, which is {}",
                                 config.model, shape.length, config.context));
  if (shape.cached != 0 && (shape.cached < shape.length || shape.cached > config.context))
    throw UsageError(fmt::format(
        "{}: the cache has place for {} tokens; it must be at least the batch's length, {}, and at "
        "most context, {}",
        config.model, shape.cached, shape.length, config.context));
  check_dim(config.model, "sequences times length of a microbatch", shape.tokens());
}

OwnRows own_rows(const ModuleContext& context, int chunk) {
  const std::int64_t of_chunk = context.shape.tokens() / context.exchange_chunks;
  const std::int64_t count = of_chunk / context.tensor_ranks;
  return {.first = of_chunk * chunk + count * context.tensor_rank, .count = count};
}

std::int64_t own_rows_of(const TransformerConfig& config, const BatchShape& shape, const Target& target) {
  const std::int64_t tokens = shape.tokens(), chunks = target.exchange_chunks;
  if (chunks < 1)
    throw UsageError(fmt::format("{}: exchange_chunks is {}; it must be 1 or more", config.model, chunks));
  if (chunks > 1 && target.tensor == 1)
    throw UsageError(
        fmt::format("{}: exchange_chunks is {}, but mesh.tensor is 1 and nothing is exchanged; set it to 1",
                    config.model, chunks));
  if (chunks > 1 && !config.sequence_parallel)
    throw UsageError(
        fmt::format("{}: exchange_chunks is {} and sequence_parallel is false; chunks are of the rows that "
                    "it gives to each rank",
                    config.model, chunks));
  const std::int64_t rows = part_of(config.model, "tokens of a microbatch", tokens, target.tensor);
  if (rows % chunks != 0)
    throw UsageError(
        fmt::format("{}: exchange_chunks is {}, but each of {} tensor ranks has {} tokens of a microbatch; "
                    "chunks must have equal parts of them",
                    config.model, chunks, target.tensor, rows));
  if (chunks > 1 && target.device != DeviceType::cpu && rows / chunks % 64 != 0)
    throw UsageError(
        fmt::format("{}: exchange_chunks is {}, so that a tensor rank has {} tokens of a chunk; on a GPU it "
                    "must have a multiple of 64, which keeps pieces of values aligned to 256 bytes",
                    config.model, chunks, rows / chunks));
  return rows;
}

std::int64_t stream_rows_of(const TransformerConfig& config, const BatchShape& shape, const Target& target) {
  const std::int64_t own = own_rows_of(config, shape, target);
  return config.sequence_parallel ? own : shape.tokens();
}

std::string words_of_dropout(const char* name, std::uint32_t threshold) {
  return threshold == 0 ? "" : fmt::format(", {} {} / 65536", name, threshold);
}

namespace {

void drop_rows(const TransformerConfig& config, const ModuleContext& context,
               const kernels::ComputeContext& compute, std::int64_t matrix, const OwnRows& rows,
               const void* tensor, void* output) {
  kernels::dropout(compute,
                   {.batch = context.shape.sequences,
                    .sequence = context.shape.length,
                    .channels = config.channels,
                    .type = config.type,
                    .first_row = rows.first,
                    .rows = rows.count},
                   dropout_of(context, config.dropout, matrix), tensor, output);
}

}  // namespace

void drop_own_rows(const TransformerConfig& config, const ModuleContext& context,
                   const kernels::ComputeContext& compute, std::int64_t matrix, const void* tensor,
                   void* output, int chunk) {
  if (chunk != kAllChunks)
    return drop_rows(config, context, compute, matrix, own_rows(context, chunk), tensor, output);
  const std::int64_t bytes = own_rows(context, 0).count * config.channels * bytes_of(config.type);
  for (int each = 0; each < context.exchange_chunks; ++each)
    drop_rows(config, context, compute, matrix, own_rows(context, each), at(tensor, each * bytes),
              at(output, each * bytes));
}

void drop_stream(const TransformerConfig& config, const ModuleContext& context,
                 const kernels::ComputeContext& compute, std::int64_t matrix, const void* tensor,
                 void* output, int chunk) {
  if (config.sequence_parallel) return drop_own_rows(config, context, compute, matrix, tensor, output, chunk);
  drop_rows(config, context, compute, matrix, {.count = context.shape.tokens()}, tensor, output);
}

Initial initial_of_tokens(const TransformerConfig& config) {
  return {Initial::Kind::normal, config.deviation, config.vocabulary * config.channels};
}

Model make_transformer(const TransformerConfig& config, std::int64_t layers) {
  if (config.logits_bytes < 0)
    throw UsageError(
        fmt::format("{}: logits_bytes is {}; it must be 0 or more", config.model, config.logits_bytes));
  check_fp8_type(config);
  Model model;
  model.name = config.model;
  if (config.fp8_products) model.least_gpu = {9, 0};
  model.vocabulary = config.vocabulary;
  model.token_rows = config.token_rows;
  model.max_length = config.context;
  model.batch_bytes = [](const BatchShape& shape) {
    return 2 * shape.tokens() * static_cast<std::int64_t>(sizeof(std::int32_t));
  };
  model.names.emplace_back("embed");
  model.modules.push_back(make_embed(config));
  for (std::int64_t index = 0; index < layers; ++index) {
    model.names.push_back(fmt::format("block.{}", index));
    model.modules.push_back(make_block(config, index));
  }
  model.names.emplace_back("head");
  model.modules.push_back(make_head(config));
  if (config.lora.rank == 0) return model;
  model.lora = config.lora;
  return amended(std::move(model), [](ParameterSpec& parameter) {
    parameter.trainable = parameter.name.ends_with(".lora_a") || parameter.name.ends_with(".lora_b");
  });
}

}  // namespace tessera::nn
