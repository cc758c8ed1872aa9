#include <fmt/format.h>

#include <cmath>

#include "src/nn/support.h"
#include "src/nn/transformer.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

constexpr double kDeviation = 0.02;  // of the initial weights

void check_config(const Gpt2Config& config) {
  nn::check_dim("gpt2", "vocabulary", config.vocabulary);
  nn::check_dim("gpt2", "pad_vocabulary_to", config.pad_vocabulary_to);
  nn::check_dim("gpt2", "context", config.context);
  nn::check_dim("gpt2", "layers", config.layers);
  nn::check_dim("gpt2", "heads", config.heads);
  nn::check_dim("gpt2", "channels", config.channels);
  if (config.channels % config.heads != 0)
    throw UsageError(fmt::format("gpt2: channels is {}; it must be a multiple of heads, which is {}",
                                 config.channels, config.heads));
}

}  // namespace

Model make_gpt2(const Gpt2Config& config, DType type) {
  check_config(config);
  nn::check_type("gpt2", type);
  return nn::make_transformer(
      {.model = "gpt2",
       .type = type,
       .vocabulary = config.vocabulary,
       .token_rows = nn::padded_rows(config.vocabulary, config.pad_vocabulary_to),
       .context = config.context,
       .channels = config.channels,
       .heads = config.heads,
       .kv_heads = config.heads,
       .hidden = 4 * config.channels,
       .norm = {.kind = nn::NormKind::layer, .epsilon = 1e-5f},
       .mlp = nn::MlpKind::gelu,
       .logits_bytes = config.logits_bytes,
       .sequence_parallel = config.sequence_parallel,
       .dropout = nn::dropout_threshold("gpt2", "dropout", config.dropout),
       .attention_dropout = nn::dropout_threshold("gpt2", "attention_dropout", config.attention_dropout),
       .deviation = kDeviation,
       .residual_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config.layers)),
       .lora = nn::checked(config.lora, "gpt2"),
       .fp8_products = config.fp8_products},
      config.layers);
}

}  // namespace tessera
