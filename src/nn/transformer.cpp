#include "src/nn/transformer.h"

#include <fmt/format.h>

#include "kernels/kernels.h"
#include "src/nn/support.h"
#include "tessera/error.h"

namespace tessera::nn {

void check_batch(const TransformerConfig& config, const BatchShape& shape) {
  check_dim(config.model, "sequences of a microbatch", shape.sequences);
  if (shape.length < 1 || shape.length > config.context)
    throw UsageError(fmt::format("{}: length of a microbatch is {}; it must be 1 to context, which is {}",
                                 config.model, shape.length, config.context));
  check_dim(config.model, "sequences times length of a microbatch", shape.tokens());
}

StreamRows stream_rows(const ModuleContext& context) {
  const std::int64_t count = context.shape.tokens() / context.tensor_ranks;
  return {.first = count * context.tensor_rank, .count = count};
}

std::string words_of_dropout(const char* name, std::uint32_t threshold) {
  return threshold == 0 ? "" : fmt::format(", {} {} / 65536", name, threshold);
}

void drop_stream(const TransformerConfig& config, const ModuleContext& context,
                 const kernels::ComputeContext& compute, std::int64_t matrix, const void* tensor,
                 void* output) {
  kernels::dropout(compute,
                   {.batch = context.shape.sequences,
                    .sequence = context.shape.length,
                    .channels = config.channels,
                    .type = config.type,
                    .first_row = stream_rows(context).first,
                    .rows = stream_rows(context).count},
                   dropout_of(context, config.dropout, matrix), tensor, output);
}

Model make_transformer(const TransformerConfig& config, std::int64_t layers) {
  if (config.logits_bytes < 0)
    throw UsageError(
        fmt::format("{}: logits_bytes is {}; it must be 0 or more", config.model, config.logits_bytes));
  Model model;
  model.name = config.model;
  model.vocabulary = config.vocabulary;
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
  return model;
}

}  // namespace tessera::nn
