#include <fmt/format.h>

#include <cmath>

#include "kernels/rotary_math.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

void require(bool holds, std::string_view field, double value, std::string_view rule) {
  if (!holds) throw UsageError(fmt::format("llama: {} is {}; it must be {}", field, value, rule));
}

void check_scaling(const RopeScaling& scaling) {
  const auto finite_from = [](double value, double least) { return std::isfinite(value) && value >= least; };
  require(finite_from(scaling.factor, 1.0), "rope_scaling.factor", scaling.factor, "1 or more");
  nn::check_dim("llama", "rope_scaling.original_context", scaling.original_context);
  require(std::isfinite(scaling.low_frequency) && scaling.low_frequency > 0.0, "rope_scaling.low_frequency",
          scaling.low_frequency, "above 0");
  require(std::isfinite(scaling.high_frequency) && scaling.high_frequency > scaling.low_frequency,
          "rope_scaling.high_frequency", scaling.high_frequency, "above rope_scaling.low_frequency");
}

void check_config(const LlamaConfig& config) {
  nn::check_dim("llama", "vocabulary", config.vocabulary);
  nn::check_dim("llama", "pad_vocabulary_to", config.pad_vocabulary_to);
  nn::check_dim("llama", "context", config.context);
  nn::check_dim("llama", "layers", config.layers);
  nn::check_dim("llama", "heads", config.heads);
  nn::check_dim("llama", "kv_heads", config.kv_heads);
  nn::check_dim("llama", "channels", config.channels);
  nn::check_dim("llama", "hidden", config.hidden);
  if (config.channels % (2 * config.heads) != 0)
    throw UsageError(
        fmt::format("llama: channels is {}; it must be an even multiple of heads, which is {}, because "
                    "channels are rotated in pairs",
                    config.channels, config.heads));
  if (config.heads % config.kv_heads != 0)
    throw UsageError(fmt::format("llama: kv_heads is {}; it must divide heads, which is {}", config.kv_heads,
                                 config.heads));
  require(std::isfinite(config.rope_theta) && config.rope_theta > 1.0, "rope_theta", config.rope_theta,
          "above 1");
  // In fp32: a smaller one would vanish, and 0/0 would follow where a row is 0.
  require(static_cast<float>(config.norm_epsilon) > 0.0F && config.norm_epsilon < 1.0, "norm_epsilon",
          config.norm_epsilon, "above 0 in fp32, and below 1");
  check_scaling(config.rope_scaling);
}

std::vector<float> frequencies_of(const LlamaConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  return kernels::rotary_frequencies(config.channels / config.heads, config.rope_theta,
                                     {.factor = scaling.factor,
                                      .low_frequency = scaling.low_frequency,
                                      .high_frequency = scaling.high_frequency,
                                      .original_context = static_cast<double>(scaling.original_context)});
}

}  // namespace

Model make_llama(const LlamaConfig& config, DType type) {
  check_config(config);
  nn::check_type("llama", type);
  return nn::make_transformer(
      {.model = "llama",
       .type = type,
       .vocabulary = config.vocabulary,
       .token_rows = nn::padded_rows(config.vocabulary, config.pad_vocabulary_to),
       .context = config.context,
       .channels = config.channels,
       .heads = config.heads,
       .kv_heads = config.kv_heads,
       .hidden = config.hidden,
       .norm = {.kind = nn::NormKind::rms, .epsilon = static_cast<float>(config.norm_epsilon)},
       .mlp = nn::MlpKind::swiglu,
       .biases = false,
       .learned_positions = false,
       .rotary = frequencies_of(config),
       .tied = config.tied,
       .logits_bytes = config.logits_bytes,
       .sequence_parallel = config.sequence_parallel,
       .dropout = nn::dropout_threshold("llama", "dropout", config.dropout),
       .attention_dropout = nn::dropout_threshold("llama", "attention_dropout", config.attention_dropout),
       .lora = nn::checked(config.lora, "llama"),
       .fp8_products = config.fp8_products},
      config.layers);
}

}  // namespace tessera
