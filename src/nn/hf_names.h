// Tensor names and layouts of Hugging Face's checkpoints, a file for each family.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tessera/module.h"
#include "tessera/safetensors.h"

namespace tessera::nn {

// The parameters of a transformer that are not tied to another.
class Shapes {
 public:
  explicit Shapes(const Model& model);
  const Shape& of(const std::string& parameter) const;
  bool has(const std::string& parameter) const { return shapes_.contains(parameter); }

  const std::int64_t layers;

 private:
  std::map<std::string, Shape> shapes_;
};

// A tensor that is the parameter as it is.
void add_whole(const Shapes& shapes, const std::string& name, const std::string& parameter, WeightMap& map);

WeightMap hf_gpt2(const Shapes& shapes);
WeightMap hf_llama(const Shapes& shapes);

}  // namespace tessera::nn
