// The three kinds of modules of a language model: embedding, block and head. GPT-2 and Llama are values of
// TransformerConfig.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/context.h"
#include "src/nn/lora.h"
#include "src/nn/norm.h"
#include "tessera/model.h"
#include "tessera/module.h"

namespace tessera::nn {

enum class MlpKind : std::uint8_t {
  gelu,    // down(gelu(up(x)))
  swiglu,  // down(silu(gate(x)) * up(x)); gate and up are one matrix, gate first
};

struct TransformerConfig {
  std::string model;  // the model's name in errors
  DType type = DType::fp32;
  std::int64_t vocabulary = 0;
  std::int64_t token_rows = 0;  // of the embedding and the head: the vocabulary, and padding, which is 0
  std::int64_t context = 0;     // the longest sequence
  std::int64_t channels = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t hidden = 0;  // width between the matrices of the MLP
  Norm norm;
  MlpKind mlp = MlpKind::gelu;
  bool biases = true;              // whether the linear layers in blocks have biases
  bool learned_positions = true;   // whether the embedding has a table of positions
  std::vector<float> rotary = {};  // frequencies [head channels / 2]; empty: no rotation of queries and keys
  bool tied = true;                // the head's weight is embed.token
  std::int64_t logits_bytes = 0;   // see Gpt2Config, as the next
  bool sequence_parallel = true;
  // Thresholds as in kernels::Dropout.
  std::uint32_t dropout = 0;            // of the embedding's output and the ends of residual branches
  std::uint32_t attention_dropout = 0;  // of attention's probabilities
  double deviation = 0.02;              // of the initial weights
  double residual_deviation = 0.02;     // of the weights that end a residual branch
  Lora lora = {};                       // as checked() gives it
  bool fp8_products = false;            // see Gpt2Config
};

// Throws UsageError where products in fp8 are asked for and the type is not bf16.
void check_fp8_type(const TransformerConfig& config);

// The values that such a table of tokens begins with.
Initial initial_of_tokens(const TransformerConfig& config);

// Throws UsageError unless sequences ≥ 1 and 1 ≤ length ≤ context.
void check_batch(const TransformerConfig& config, const BatchShape& shape);

// This rank's own rows, of all tokens of the microbatch, in one of the context's chunks (exchange_chunks).
// Each chunk has consecutive tokens, of which each tensor rank has consecutive ones.
struct OwnRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
OwnRows own_rows(const ModuleContext& context, int chunk);
constexpr int kAllChunks = -1;
// The same of all chunks together, in which a rank's rows lie one behind the other. Throws UsageError where
// the ranks and chunks cannot have equal parts.
std::int64_t own_rows_of(const TransformerConfig& config, const BatchShape& shape, const Target& target);
// The rows that a rank has of the residual stream: its own, or those of all tokens where the sequence is not
// parallel.
std::int64_t stream_rows_of(const TransformerConfig& config, const BatchShape& shape, const Target& target);
// What a rank makes of the gradient of a parameter that is used row by row on the residual stream.
constexpr GradientOver stream_gradient(const TransformerConfig& config) {
  return config.sequence_parallel ? GradientOver::partial : GradientOver::copied;
}

// ", dropout 6554 / 65536" for a threshold, empty for 0. For Module::numerics().
std::string words_of_dropout(const char* name, std::uint32_t threshold);

// output = dropout(tensor) in a training step, and a copy in other steps; both are [rows, channels], with
// this rank's own rows of a chunk or of all. Give the same `matrix` in every pass, and a different one for
// each tensor that the unit drops from. output may be tensor.
void drop_own_rows(const TransformerConfig& config, const ModuleContext& context,
                   const kernels::ComputeContext& compute, std::int64_t matrix, const void* tensor,
                   void* output, int chunk = kAllChunks);
// The same of the rows that it has of the residual stream.
void drop_stream(const TransformerConfig& config, const ModuleContext& context,
                 const kernels::ComputeContext& compute, std::int64_t matrix, const void* tensor,
                 void* output, int chunk = kAllChunks);

// Parameters: embed.token [vocabulary, channels] and, with learned positions, embed.position [context,
// channels]. Saves nothing.
std::unique_ptr<Module> make_embed(const TransformerConfig& config);

// y = x + attention(norm(x)); the output is y + mlp(norm(y)).
std::unique_ptr<Module> make_block(const TransformerConfig& config, std::int64_t index);

// The final norm, and the loss over a linear layer without bias; saves nothing.
std::unique_ptr<Module> make_head(const TransformerConfig& config);

// Units: "embed", "block.0" …, "head".
Model make_transformer(const TransformerConfig& config, std::int64_t layers);

}  // namespace tessera::nn
