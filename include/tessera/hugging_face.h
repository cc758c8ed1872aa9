// Floor 7: the tensor names and layouts of Hugging Face's checkpoints, and their config.json, for the models
// that come with Tessera.
#pragma once

#include <string>

#include "tessera/model.h"
#include "tessera/module.h"
#include "tessera/safetensors.h"

namespace tessera {

// The tensors of a Model that make_gpt2 or make_llama made; UsageError for any other.
// GPT-2: transformer.wte.weight, transformer.h.0.attn.c_attn.weight …, with or without "transformer."; the
// blocks' matrices are stored as [in, out].
// Llama: model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight …, with or without "model.";
// lm_head.weight if the head is not tied.
WeightMap hugging_face_weights(const Model& model);

// The tensors of the model's adapters (Model::lora) as PEFT stores them in adapter_model.safetensors:
// base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight …, each [rank, inputs] or [outputs, rank].
// In the map of hugging_face_weights() they are not. UsageError for a model without adapters.
WeightMap hugging_face_adapter(const Model& model);
// The tensors of hugging_face_weights() in which those of adapted layers are W + scale · B A, for exports.
WeightMap hugging_face_merged_weights(const Model& model);
// The text of PEFT's adapter_config.json for the model's adapters. `base` is where the weights are that they
// adapt, empty: not said.
std::string hugging_face_adapter_config(const Model& model, const std::string& base);

// The text of the config.json from which the transformers library builds the same model: GPT2LMHeadModel or
// LlamaForCausalLM. `type` is the type of the tensors beside it. It names no begin-of-text or end-of-text
// tokens.
std::string hugging_face_config(const Gpt2Config& config, DType type);
std::string hugging_face_config(const LlamaConfig& config, DType type);

}  // namespace tessera
