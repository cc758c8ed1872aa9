// A Llama small enough for the float64 reference, with the same weights and tokens in both.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tessera/model.h"
#include "tests/nn/gpt2_fixture.h"
#include "tests/nn/model_run.h"
#include "tests/nn/reference_llama.h"

namespace tessera::testing {

// Two query heads share a key and value head; the MLP is not a multiple of the width; the head is its own.
inline constexpr LlamaConfig kSmallLlama = {.vocabulary = 61,
                                            .context = 16,
                                            .layers = 2,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .channels = 32,
                                            .hidden = 44,
                                            .rope_theta = 500.0,
                                            .norm_epsilon = 1e-4};

inline LlamaConfig tied_small_llama() {
  LlamaConfig config = kSmallLlama;
  config.tied = true;
  return config;
}

inline reference::LlamaDims reference_dims(const LlamaConfig& config) {
  const auto dim = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  return {.vocabulary = dim(config.vocabulary),
          .layers = dim(config.layers),
          .heads = dim(config.heads),
          .kv_heads = dim(config.kv_heads),
          .channels = dim(config.channels),
          .hidden = dim(config.hidden),
          .rope_theta = config.rope_theta,
          .norm_epsilon = config.norm_epsilon,
          .tied = config.tied};
}

class SmallLlama {
 public:
  explicit SmallLlama(DType type, const BatchShape& shape = kSmallBatch,
                      const LlamaConfig& config = kSmallLlama, int threads = 1)
      : batch(shape, config.vocabulary, 7),
        tokens(batch.view(shape)),
        run(make_llama(config, type), shape, threads),
        reference(reference_dims(config)) {
    for (const std::string& name : run.names()) {
      run.set_parameter(name, lively_values(name, run.numel(name)));
      const std::vector<float> rounded = run.parameter(name);
      reference.parameters.at(name).value.assign(rounded.begin(), rounded.end());
    }
    load(batch);
  }

  void load(const TokenBatch& source) {
    const std::size_t bytes = source.inputs.size() * sizeof(std::int32_t);
    std::memcpy(run.batch(), source.inputs.data(), bytes);
    std::memcpy(static_cast<char*>(run.batch()) + bytes, source.targets.data(), bytes);
  }

  TokenBatch batch;
  reference::Tokens tokens;
  ModelRun run;
  reference::Llama reference;
};

}  // namespace tessera::testing
