// config.json of Hugging Face's checkpoints: what the transformers library builds a model from.
#include <nlohmann/json.hpp>

#include "tessera/hugging_face.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;  // as they are written there

const char* torch_name(DType type) {
  return type == DType::fp32 ? "float32" : type == DType::bf16 ? "bfloat16" : "float16";
}

// Which tokens begin and end a text is the tokenizer's affair; the library's defaults would be those of one.
void add_common(Json& json, std::int64_t vocabulary, bool tied, DType type) {
  json["vocab_size"] = vocabulary;
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["tie_word_embeddings"] = tied;
  json["initializer_range"] = 0.02;
  json["use_cache"] = true;
  json["torch_dtype"] = torch_name(type);
}

Json scaling_of(const RopeScaling& scaling) {
  if (scaling.factor == 1.0) return nullptr;
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_frequency},
          {"high_freq_factor", scaling.high_frequency},
          {"original_max_position_embeddings", scaling.original_context}};
}

}  // namespace

std::string hugging_face_config(const Gpt2Config& config, DType type) {
  Json json = {{"architectures", Json::array({"GPT2LMHeadModel"})},
               {"model_type", "gpt2"},
               {"n_positions", config.context},
               {"n_embd", config.channels},
               {"n_layer", config.layers},
               {"n_head", config.heads},
               {"n_inner", nullptr},                 // 4 n_embd
               {"activation_function", "gelu_new"},  // by tanh
               {"layer_norm_epsilon", 1e-5},
               {"resid_pdrop", config.dropout},
               {"embd_pdrop", config.dropout},
               {"attn_pdrop", config.attention_dropout}};
  add_common(json, config.vocabulary, true, type);
  return json.dump(2) + "\n";
}

std::string hugging_face_config(const LlamaConfig& config, DType type) {
  Json json = {{"architectures", Json::array({"LlamaForCausalLM"})},
               {"model_type", "llama"},
               {"max_position_embeddings", config.context},
               {"hidden_size", config.channels},
               {"intermediate_size", config.hidden},
               {"num_hidden_layers", config.layers},
               {"num_attention_heads", config.heads},
               {"num_key_value_heads", config.kv_heads},
               {"hidden_act", "silu"},
               {"attention_bias", false},
               {"mlp_bias", false},
               {"attention_dropout", config.attention_dropout},
               {"rms_norm_eps", config.norm_epsilon},
               {"rope_theta", config.rope_theta},
               {"rope_scaling", scaling_of(config.rope_scaling)}};
  add_common(json, config.vocabulary, config.tied, type);
  return json.dump(2) + "\n";
}

}  // namespace tessera
