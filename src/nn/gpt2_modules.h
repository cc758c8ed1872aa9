// The three kinds of modules a GPT-2 is a chain of. Each file beside this one holds one of them.
#pragma once

#include <cstdint>
#include <memory>

#include "tessera/model.h"
#include "tessera/module.h"

namespace tessera::nn {

inline constexpr double kGpt2Deviation = 0.02;  // of the initial weights

// Optimizer groups, as Model::groups names them: matrices decay, biases and norms do not.
inline constexpr int kDecay = 0;
inline constexpr int kNoDecay = 1;

// embed.token [vocabulary, channels] and embed.position [context, channels]; saves nothing.
std::unique_ptr<Module> make_gpt2_embed(const Gpt2Config& config, DType type);

// x + attention(norm(x)), then that + mlp(norm(that)).
std::unique_ptr<Module> make_gpt2_block(const Gpt2Config& config, DType type, std::int64_t index);

// The final LayerNorm, and the loss over a linear layer tied to embed.token; saves nothing.
std::unique_ptr<Module> make_gpt2_head(const Gpt2Config& config, DType type);

// Throws UsageError unless sequences ≥ 1 and 1 ≤ length ≤ config.context.
void check_gpt2_shape(const Gpt2Config& config, const BatchShape& shape);

}  // namespace tessera::nn
