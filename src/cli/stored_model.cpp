#include "src/cli/stored_model.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "src/cli/config_keys.h"
#include "src/cli/dimensions.h"
#include "src/cli/files.h"
#include "src/cli/kept_files.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

using nlohmann::json;

// The values of a config.json, by their keys there.
class Stored {
 public:
  Stored(std::filesystem::path file, json values, std::string key)
      : file_(std::move(file)), key_(std::move(key)), values_(std::move(values)) {}

  [[noreturn]] void refuse(const std::string& name, const std::string& value,
                           const std::string& right) const {
    throw UsageError(
        fmt::format("{}: '{}' has {}{} {}; {}", key_, file_.string(), prefix_, name, value, right));
  }

  // null where the key is missing or null. Some keys have a second name.
  json find(const std::string& name, const char* other = nullptr) const {
    const auto found = values_.find(name);
    if (found == values_.end() && other != nullptr) return find(other);
    return found == values_.end() ? json(nullptr) : *found;
  }

  // The object under a key, as a file of its own: messages name "rope_scaling.factor".
  Stored section(const std::string& name) const {
    Stored inner(file_, values_.at(name), key_);
    inner.prefix_ = name + ".";
    return inner;
  }

  std::int64_t integer(const std::string& name, const char* other, std::int64_t missing) const {
    const json value = find(name, other);
    if (value.is_null() && missing > 0) return missing;
    if (!value.is_number_integer() || value < 1 || value > static_cast<std::int64_t>(kMostInt))
      refuse(name, value.dump(), fmt::format("it must be an integer from 1 to {}", kMostInt));
    return value.get<std::int64_t>();
  }

  double number(const std::string& name, double missing) const {
    const json value = find(name);
    if (value.is_null() && missing > 0) return missing;
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value <= 0.0)
      refuse(name, value.dump(), "it must be a number above 0");
    return value.get<double>();
  }

  bool boolean(const std::string& name, bool missing) const {
    const json value = find(name);
    if (value.is_null()) return missing;
    if (!value.is_boolean()) refuse(name, value.dump(), "it must be true or false");
    return value.get<bool>();
  }

  // What no key of [model] changes. A missing value is `supported`; so is null.
  void require(const std::string& name, const json& supported) const {
    const json value = find(name);
    if (!value.is_null() && value != supported)
      refuse(name, value.dump(), fmt::format("supported is {}", supported.dump()));
  }
  // Likewise, of a width that follows from others.
  void require_width(const std::string& name, std::int64_t derived, const char* formula) const {
    const json value = find(name);
    if (!value.is_null() && value != derived)
      refuse(name, value.dump(), fmt::format("supported is {} = {}", formula, derived));
  }
  // One function by several names.
  void require_one_of(const std::string& name, const std::vector<std::string>& names) const {
    const json value = find(name);
    for (const std::string& one : names)
      if (value.is_null() || value == one) return;
    refuse(name, value.dump(), fmt::format("supported is \"{}\"", names.front()));
  }

 private:
  const std::filesystem::path file_;
  const std::string key_;  // of the configuration
  const json values_;
  std::string prefix_ = {};
};

// Version 5 of transformers writes rope_parameters where version 4 writes rope_theta and rope_scaling.
json in_version_4(json values) {
  const auto rope = values.find("rope_parameters");
  if (rope == values.end() || !rope->is_object()) return values;
  const json parameters = *rope;
  values["rope_scaling"] = parameters;
  if (parameters.contains("rope_theta")) values["rope_theta"] = parameters.at("rope_theta");
  return values;
}

// A key of [model], and what config.json says of it.
void tell(StoredModel& stored, const char* key, const std::string& name, const auto& value) {
  stored.told[key] = name + " " + json(value).dump();
}

void read_gpt2(const Stored& file, StoredModel& stored) {
  ModelConfig& model = stored.model;
  const auto integer = [&](const char* key, const char* name, const char* other, std::int64_t missing) {
    const std::int64_t value = file.integer(name, other, missing);
    tell(stored, key, name, value);
    return value;
  };
  model.vocabulary = integer("vocabulary", "vocab_size", nullptr, 50257);
  model.context = integer("context", "n_positions", "max_position_embeddings", 1024);
  model.layers = integer("layers", "n_layer", "num_hidden_layers", 12);
  model.heads = integer("heads", "n_head", "num_attention_heads", 12);
  model.channels = integer("channels", "n_embd", "hidden_size", 768);
  file.require_width("n_inner", 4 * model.channels, "4 n_embd");
  file.require_one_of("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
  file.require("layer_norm_epsilon", 1e-5);
  file.require("scale_attn_weights", true);
  file.require("scale_attn_by_inverse_layer_idx", false);
  file.require("add_cross_attention", false);
  file.require("tie_word_embeddings", true);
}

void read_rope_scaling(const Stored& file, StoredModel& stored) {
  ModelConfig& model = stored.model;
  const json scaling = file.find("rope_scaling");
  const json type = !scaling.is_object()            ? json(nullptr)
                    : scaling.contains("rope_type") ? scaling["rope_type"]
                                                    : scaling.value("type", json());
  model.rope_scaling = 1.0;
  stored.told["rope_scaling"] = "rope_scaling " + scaling.dump();
  if (scaling.is_null() || type == "default") return;
  if (type != "llama3")
    file.refuse("rope_scaling", scaling.dump(), R"(supported is null, or "rope_type" "llama3")");
  const Stored numbers = file.section("rope_scaling");
  model.rope_scaling = numbers.number("factor", 0);
  tell(stored, "rope_scaling", "rope_scaling.factor", model.rope_scaling);
  if (model.rope_scaling == 1.0) return;
  model.rope_low_freq_factor = numbers.number("low_freq_factor", 0);
  model.rope_high_freq_factor = numbers.number("high_freq_factor", 0);
  model.rope_original_context = numbers.integer("original_max_position_embeddings", nullptr, 0);
  tell(stored, "rope_low_freq_factor", "rope_scaling.low_freq_factor", model.rope_low_freq_factor);
  tell(stored, "rope_high_freq_factor", "rope_scaling.high_freq_factor", model.rope_high_freq_factor);
  tell(stored, "rope_original_context", "rope_scaling.original_max_position_embeddings",
       model.rope_original_context);
}

void read_llama(const Stored& file, StoredModel& stored) {
  ModelConfig& model = stored.model;
  const auto integer = [&](const char* key, const char* name, std::int64_t missing) {
    const std::int64_t value = file.integer(name, nullptr, missing);
    tell(stored, key, name, value);
    return value;
  };
  model.vocabulary = integer("vocabulary", "vocab_size", 32000);
  model.context = integer("context", "max_position_embeddings", 2048);
  model.layers = integer("layers", "num_hidden_layers", 32);
  model.heads = integer("heads", "num_attention_heads", 32);
  model.kv_heads = integer("kv_heads", "num_key_value_heads", model.heads);
  model.channels = integer("channels", "hidden_size", 4096);
  model.hidden = integer("hidden", "intermediate_size", 11008);
  model.norm_epsilon = file.number("rms_norm_eps", 1e-6);
  model.rope_theta = file.number("rope_theta", 10000.0);
  model.tied = file.boolean("tie_word_embeddings", false) ? "true" : "false";
  tell(stored, "norm_epsilon", "rms_norm_eps", model.norm_epsilon);
  tell(stored, "rope_theta", "rope_theta", model.rope_theta);
  tell(stored, "tied", "tie_word_embeddings", model.tied == "true");
  read_rope_scaling(file, stored);
  file.require_one_of("hidden_act", {"silu", "swish"});
  file.require("attention_bias", false);
  file.require("mlp_bias", false);
  file.require("partial_rotary_factor", 1.0);
  file.require_width("head_dim", model.channels / model.heads, "hidden_size / num_attention_heads");
}

// The shares that training drops, with what counts where they are missing.
std::map<std::string, double> dropouts_of(const Stored& file, const std::string& family) {
  std::map<std::string, double> shares = {{"attention_dropout", 0.0}};
  if (family == "gpt2") shares = {{"attn_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"resid_pdrop", 0.1}};
  for (auto& [name, share] : shares) {
    const json value = file.find(name);
    if (!value.is_null() && !value.is_number()) file.refuse(name, value.dump(), "it must be a number");
    if (value.is_number()) share = value;
  }
  return shares;
}

// By its name in torch. Version 5 of transformers writes dtype where version 4 writes torch_dtype.
std::string type_of(const Stored& file) {
  const json name = file.find("dtype", "torch_dtype");
  for (const auto& [theirs, ours] :
       {std::pair("float32", "fp32"), std::pair("bfloat16", "bf16"), std::pair("float16", "fp16")})
    if (name == theirs) return ours;
  return "";
}

json parse_config_file(const std::filesystem::path& file, const std::string& key) {
  // What is there and cannot be read is no reason to go on without it.
  const std::optional<std::string> text = read_text(file);
  if (!text)
    throw EnvironmentError(fmt::format("{}: cannot read '{}': {}", key, file.string(), std::strerror(errno)));
  json values = json::parse(*text, nullptr, false);
  if (!values.is_object())
    throw EnvironmentError(fmt::format("{}: '{}' is no JSON object", key, file.string()));
  return values;
}

}  // namespace

StoredModel read_stored_model(const std::filesystem::path& path, const std::string& key) {
  const Stored file(path, in_version_4(parse_config_file(path, key)), key);
  StoredModel stored{.file = path, .model = {}, .told = {}, .type = type_of(file), .dropouts = {}};
  const json type = file.find("model_type");
  if (type != "gpt2" && type != "llama")
    file.refuse("model_type", type.dump(), R"(supported is "gpt2" or "llama")");
  stored.model.family = type;
  stored.model.preset = smallest_preset(stored.model.family);
  tell(stored, "family", "model_type", stored.model.family);
  stored.model.family == "gpt2" ? read_gpt2(file, stored) : read_llama(file, stored);
  stored.dropouts = dropouts_of(file, stored.model.family);
  return stored;
}

std::optional<std::filesystem::path> stored_config_file(const std::filesystem::path& weights) {
  std::error_code error;
  const bool whole_folder = std::filesystem::is_directory(weights, error);
  const std::filesystem::path folder = whole_folder ? weights : weights.parent_path();
  const std::filesystem::path file = folder / kConfigFile;
  if (!exists(symlink_status(file, error))) return std::nullopt;
  return file;
}

}  // namespace tessera::cli
