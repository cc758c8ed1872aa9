// Tensor names and layouts of Hugging Face's checkpoints. Each family has a source file.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tessera/module.h"
#include "tessera/safetensors.h"

namespace tessera::nn {

// The shapes of a transformer's parameters that are not tied to another.
class Shapes {
 public:
  explicit Shapes(const Model& model);
  const Shape& of(const std::string& parameter) const;
  bool has(const std::string& parameter) const { return shapes_.contains(parameter); }

  const std::int64_t layers;
  const std::int64_t vocabulary;

 private:
  std::map<std::string, Shape> shapes_;
};

// Adds a tensor that is the whole parameter, not transposed.
void add_whole(const Shapes& shapes, const std::string& name, const std::string& parameter, WeightMap& map);

// The same of a table of tokens [rows, channels]: the file has those of the vocabulary.
void add_tokens(const Shapes& shapes, const std::string& name, const std::string& parameter, WeightMap& map);

WeightMap hf_gpt2(const Shapes& shapes);
WeightMap hf_llama(const Shapes& shapes);

}  // namespace tessera::nn
