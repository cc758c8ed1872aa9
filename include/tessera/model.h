// The models that come with Tessera.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/lora.h"
#include "tessera/module.h"

namespace tessera {

// GPT-2 (Radford et al. 2019): token and learned position embedding, pre-norm blocks of causal attention and
// a GELU MLP four times as wide, a final LayerNorm, and a head tied to the token embedding. Weights are
// normal with deviation 0.02, those that end a residual branch 0.02 / sqrt(2 · layers); biases are 0.
struct Gpt2Config {
  std::int64_t vocabulary = 50257;
  // The embedding, and so the head, has rows for a multiple of so many tokens. The rows behind the vocabulary
  // are padding: they begin as 0 and stay 0, have no logits, and are in no file of weights.
  std::int64_t pad_vocabulary_to = 1;
  std::int64_t context = 1024;  // the longest sequence
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t channels = 768;  // a multiple of heads
  // Most bytes of fp32 logits at a time; a microbatch with more is cut into chunks of tokens. 0: 64 MiB on
  // the CPU, the logits of 2,048 tokens on a GPU. Where bf16 has several chunks, the gradient of the head's
  // weight is summed in fp32, which takes 4 bytes for each of its elements during the head's backward.
  std::int64_t logits_bytes = 0;
  // The share of elements that a training step sets to 0, rounded to the nearest 2^-16; the others are scaled
  // up. `dropout` applies to the embedding's output and the ends of residual branches, `attention_dropout` to
  // the attention's probabilities.
  double dropout = 0.0;
  double attention_dropout = 0.0;
  // Whether each of several tensor ranks has some of the tokens in what stands between the layers that they
  // split (norms, dropout, the residual stream; Korthikanti et al. 2022). If false, each does all of that:
  // backward then gathers no outputs of norms again, and what is kept there takes its whole memory on every
  // rank. The parameters are the same, and the bits differ by rounding.
  bool sequence_parallel = true;
  Lora lora = {};  // with a rank above 0, only its adapters are trained: all other parameters are frozen
  // Whether the linear layers of blocks multiply in fp8, forward and backward: e4m3 with a scale for each 128
  // elements of activations and gradients, and for each 128 x 128 of weights, taken anew at every product
  // (DeepSeek-V3, arXiv 2412.19437, section 3.3; docs/numerics.md has the definition). Embedding, norms,
  // attention, adapters, head, and all of cached generation stay bf16, which the type must be. Tokens of a
  // microbatch, and what each rank has of a layer's inputs and outputs, are multiples of 16. GPUs need
  // compute capability 9.0 or later.
  bool fp8_products = false;

  // gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, gpt3-175b (all layers dense), or gpt2-tiny (10M parameters,
  // for bytes as tokens). Throws UsageError listing these names for any other name.
  static Gpt2Config preset(std::string_view name);
  static std::vector<std::string> presets();
};

// Units: "embed", "block.0" …, "head". A microbatch is int32 inputs [sequences, length], then int32 targets
// of the same shape, −1 where not counted. type: fp32 or bf16, of parameters and activations; fp16 throws
// UnsupportedError. Throws UsageError naming the field that is wrong.
Model make_gpt2(const Gpt2Config& config, DType type);

// How Llama 3.1 and later stretch the rotary embedding to a longer context than in their first training.
// Wavelengths above original_context / low_frequency tokens become `factor` times longer. Those below
// original_context / high_frequency stay. Between the two, both are mixed.
struct RopeScaling {
  double factor = 1.0;  // 1: none
  double low_frequency = 1.0;
  double high_frequency = 4.0;
  std::int64_t original_context = 8192;
};

// Llama (Touvron et al. 2023): token embedding, pre-norm blocks of rotary, causal, grouped-query attention
// and a SwiGLU MLP, RMSNorm, no biases, and a head tied to the token embedding or of its own. Weights are
// normal with deviation 0.02. Queries and keys rotate by halves of a head, as in Hugging Face's checkpoints.
struct LlamaConfig {
  std::int64_t vocabulary = 32000;
  std::int64_t pad_vocabulary_to = 1;  // as for GPT-2
  std::int64_t context = 4096;         // the longest sequence
  std::int64_t layers = 32;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 32;    // divides heads; must divide the tensor ranks, or be a multiple of them
  std::int64_t channels = 4096;  // an even multiple of heads
  std::int64_t hidden = 11008;   // width of the MLP
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  bool tied = false;  // the head is the token embedding
  RopeScaling rope_scaling = {};
  std::int64_t logits_bytes = 0;  // as for GPT-2, as are the next five
  double dropout = 0.0;
  double attention_dropout = 0.0;
  bool sequence_parallel = true;
  Lora lora = {};
  bool fp8_products = false;

  // llama-160m, llama-1b and llama-3b (Llama 3.2), llama-7b, llama-13b and llama-70b (Llama 2), llama-8b
  // (Llama 3), or llama-tiny (10M parameters, for bytes as tokens). Throws UsageError listing these names for
  // any other name.
  static LlamaConfig preset(std::string_view name);
  static std::vector<std::string> presets();
};

// Units and microbatch as for GPT-2. A block's matrices, each [out, in]: attention.qkv (queries of all heads,
// then keys, then values), attention.projection, mlp.gate_up (gate, then up), mlp.down. type: fp32 or bf16;
// fp16 throws UnsupportedError. Throws UsageError naming the field that is wrong. A matrix with adapters, of
// either family, has them in two parameters more: attention.qkv.lora_a [adapters · rank, in], and
// attention.qkv.lora_b [rows that have one, rank], those of queries first.
Model make_llama(const LlamaConfig& config, DType type);

// A classifier: linear layers with GELU between them, and softmax cross-entropy at the end.
struct MlpConfig {
  std::int64_t inputs = 2;
  std::vector<std::int64_t> hidden = {64, 64};  // tensor ranks must divide the first, the third, and so on
  std::int64_t classes = 2;
};

// Units: "layer.0", …. A microbatch is float inputs [sequences, inputs] (256-byte padded), then int32 classes
// [sequences]; length is 1. Tensor ranks must divide the sequences of a microbatch. One rank alone makes
// logits of a row (ModuleContext::logits).
Model make_mlp(const MlpConfig& config, DType type);

}  // namespace tessera
