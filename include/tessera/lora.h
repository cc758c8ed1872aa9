// Low-rank adaptation (LoRA, Hu et al. 2021) of the linear layers of a transformer's blocks: which layers
// have adapters, of what rank and scale. Plain values; the names are those of Hugging Face's PEFT.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A layer y = W x + b with an adapter computes y + alpha / rank · B A x. A [rank, inputs] begins uniform in
// ±1 / sqrt(inputs), B [outputs, rank] as 0. A and B have the model's type; all other parameters are frozen.
struct Lora {
  std::int64_t rank = 0;                  // 0: there are no adapters
  double alpha = 0.0;                     // 0: the rank, so that the scale is 1
  std::vector<std::string> targets = {};  // empty: lora_default_targets()

  double scale() const { return rank == 0 ? 0.0 : (alpha == 0.0 ? 1.0 : alpha / static_cast<double>(rank)); }
  bool operator==(const Lora&) const = default;
};

// Stands for all linear layers of the blocks.
inline constexpr std::string_view kAllLinear = "all-linear";

// The layers of a block that can have adapters, in their order in the block. gpt2: c_attn, attn.c_proj, c_fc,
// mlp.c_proj. llama: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj. Throws UsageError for
// another family.
std::vector<std::string> lora_targets(std::string_view family);
// What PEFT takes where no targets are named. gpt2: c_attn. llama: q_proj and v_proj.
std::vector<std::string> lora_default_targets(std::string_view family);
// The layers that such targets name, each once, in the order of lora_targets(). A target names a layer by its
// name or by the end of its path in Hugging Face's model, so "c_proj" is two layers of gpt2. Throws
// UsageError for a name that is none, listing those that there are. `key` names the targets in messages.
std::vector<std::string> lora_layers(std::string_view family, const std::vector<std::string>& targets,
                                     std::string_view key = "lora.targets");

}  // namespace tessera
