// The three kinds of modules a language model is a chain of: embedding, blocks, head. GPT-2 and Llama are
// choices of what is below.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/context.h"
#include "src/nn/norm.h"
#include "tessera/model.h"
#include "tessera/module.h"

namespace tessera::nn {

enum class MlpKind : std::uint8_t {
  gelu,    // down(gelu(up(x)))
  swiglu,  // down(silu(gate(x)) * up(x)); gate and up are one matrix, gate first
};

struct TransformerConfig {
  std::string model;  // names it in errors
  DType type = DType::fp32;
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;  // the longest sequence
  std::int64_t channels = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t hidden = 0;  // width between the matrices of the MLP
  Norm norm;
  MlpKind mlp = MlpKind::gelu;
  bool biases = true;              // of the linear layers in blocks
  bool learned_positions = true;   // a table of them in the embedding
  std::vector<float> rotary = {};  // frequencies [head channels / 2]; empty: queries and keys are not rotated
  bool tied = true;                // the head's weight is embed.token
  std::int64_t logits_bytes = 0;   // see Gpt2Config
  // As thresholds of kernels::Dropout.
  std::uint32_t dropout = 0;            // of the embedding's output and the ends of residual branches
  std::uint32_t attention_dropout = 0;  // of attention's probabilities
  double deviation = 0.02;              // of the initial weights
  double residual_deviation = 0.02;     // of those that end a residual branch
};

// Throws UsageError unless sequences ≥ 1 and 1 ≤ length ≤ context.
void check_batch(const TransformerConfig& config, const BatchShape& shape);

// ", dropout 6554 / 65536" for a threshold, empty for 0: for Module::numerics().
std::string words_of_dropout(const char* name, std::uint32_t threshold);

// output = dropout(tensor), both [tokens, channels], in a training step; a copy in others. `matrix` is the
// same in every pass, and another than what else the unit drops has. output may be tensor.
void drop_stream(const TransformerConfig& config, const ModuleContext& context,
                 const kernels::ComputeContext& compute, std::int64_t matrix, const void* tensor,
                 void* output);

// embed.token [vocabulary, channels] and, where learned, embed.position [context, channels]; saves nothing.
std::unique_ptr<Module> make_embed(const TransformerConfig& config);

// x + attention(norm(x)), then that + mlp(norm(that)).
std::unique_ptr<Module> make_block(const TransformerConfig& config, std::int64_t index);

// The final norm, and the loss over a linear layer without bias; saves nothing.
std::unique_ptr<Module> make_head(const TransformerConfig& config);

// "embed", "block.0" …, "head".
Model make_transformer(const TransformerConfig& config, std::int64_t layers);

}  // namespace tessera::nn
