// GPT-2 as far as memory goes: parameters and activation bytes per unit, without its modules.
#pragma once

#include <string>
#include <vector>

#include "tessera/program.h"
#include "tessera/step_spec.h"

namespace tessera::testing {

struct Gpt2Sizes {
  std::string name;
  std::int64_t layers, channels, heads;
  std::int64_t vocabulary = 50257;
  std::int64_t context = 1024;

  static std::vector<Gpt2Sizes> presets() {
    return {{"gpt2-tiny", 6, 384, 6, 256, 256},
            {"gpt2-124m", 12, 768, 12},
            {"gpt2-355m", 24, 1024, 16},
            {"gpt2-774m", 36, 1280, 20},
            {"gpt2-1558m", 48, 1600, 25}};
  }

  // Tied: the head uses the token embedding.
  std::vector<UnitSpec> units(bool tied = true, DType dtype = DType::bf16) const {
    const std::int64_t c = channels;
    std::vector<UnitSpec> result = {
        {"embed", {{"embed.token", {vocabulary, c}, dtype}, {"embed.position", {context, c}, dtype}}}};
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      UnitSpec unit{"block." + std::to_string(layer), {}};
      const auto add = [&](const std::string& what, Shape shape) {
        unit.parameters.push_back({unit.name + "." + what, std::move(shape), dtype});
      };
      for (const char* norm : {"norm1", "norm2"}) {
        add(std::string(norm) + ".gain", {c});
        add(std::string(norm) + ".bias", {c});
      }
      const auto linear = [&](const std::string& what, std::int64_t in, std::int64_t out) {
        add(what + ".weight", {out, in});
        add(what + ".bias", {out});
      };
      linear("qkv", c, 3 * c);
      linear("projection", c, c);
      linear("up", c, 4 * c);
      linear("down", 4 * c, c);
      result.push_back(std::move(unit));
    }
    UnitSpec head{"head", {{"head.norm.gain", {c}, dtype}, {"head.norm.bias", {c}, dtype}}};
    if (tied)
      head.parameters.push_back(
          {.name = "head.weight", .shape = {vocabulary, c}, .dtype = dtype, .tied_to = "embed.token"});
    result.push_back(std::move(head));
    return result;
  }

  ActivationSpec activations(std::int64_t sequences, std::int64_t length, DType dtype = DType::bf16) const {
    const std::int64_t rows = sequences * length;
    const std::int64_t narrow = rows * channels * bytes_of(dtype);
    ActivationSpec spec{.units = {UnitActivations{.output_bytes = narrow}}, .batch_bytes = 8 * rows};
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      spec.units.push_back(UnitActivations{.output_bytes = narrow,
                                           .saved_bytes = 9 * narrow + 4 * rows * heads,
                                           .workspace_bytes = 9 * narrow + 8 * rows});
    }
    spec.units.push_back(UnitActivations{.workspace_bytes = 2 * narrow + 4 * 128 * vocabulary});
    return spec;
  }
};

}  // namespace tessera::testing
