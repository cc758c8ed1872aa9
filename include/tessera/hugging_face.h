// Floor 7: the tensor names and layouts of Hugging Face's checkpoints, for the models that come with Tessera.
#pragma once

#include "tessera/module.h"
#include "tessera/safetensors.h"

namespace tessera {

// For a Model made by make_gpt2 or make_llama; UsageError for another.
// GPT-2: transformer.wte.weight, transformer.h.0.attn.c_attn.weight …, with or without "transformer."; the
// matrices of blocks are stored [in, out]. Llama: model.embed_tokens.weight,
// model.layers.0.self_attn.q_proj.weight …, with or without "model."; lm_head.weight where the head is not
// tied.
WeightMap hugging_face_weights(const Model& model);

}  // namespace tessera
