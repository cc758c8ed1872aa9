// Which way a unit is run, and what kind of step it is run in.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Pass : std::uint8_t { forward, recompute, backward };
enum class StepKind : std::uint8_t {
  train,
  evaluate,
  finish  // does, between steps, the updates that a training step left to the next one
};

std::string_view name_of(Pass pass);
std::string_view name_of(StepKind kind);

}  // namespace tessera
