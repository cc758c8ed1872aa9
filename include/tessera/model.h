// The models that come with Tessera.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/module.h"

namespace tessera {

// GPT-2 (Radford et al. 2019): token and learned position embedding, pre-norm blocks of causal attention and
// a GELU MLP four times as wide, a final LayerNorm, and a head tied to the token embedding. Weights are
// normal with deviation 0.02, those that end a residual branch 0.02 / sqrt(2 · layers); biases are 0.
struct Gpt2Config {
  std::int64_t vocabulary = 50257;
  std::int64_t context = 1024;  // the longest sequence
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t channels = 768;  // a multiple of heads

  // gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, or gpt2-tiny (10M parameters, for bytes). Throws UsageError
  // that lists them.
  static Gpt2Config preset(std::string_view name);
  static std::vector<std::string> presets();
};

// Units: "embed", "block.0" …, "head". A microbatch is int32 inputs [sequences, length], then int32 targets
// of the same shape, −1 where not counted. type: fp32 or bf16, of parameters and activations; fp16 throws
// UnsupportedError on the CPU. Throws UsageError naming the field that is wrong.
Model make_gpt2(const Gpt2Config& config, DType type);

// A classifier: linear layers with GELU between, softmax cross-entropy at the end.
struct MlpConfig {
  std::int64_t inputs = 2;
  std::vector<std::int64_t> hidden = {64, 64};
  std::int64_t classes = 2;
};

// Units: "layer.0", …. A microbatch is float inputs [sequences, inputs] (256-byte padded), then int32 classes
// [sequences]; length is 1.
Model make_mlp(const MlpConfig& config, DType type);

}  // namespace tessera
