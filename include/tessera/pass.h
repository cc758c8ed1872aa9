// The passes in which a unit runs, and the kinds of steps.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Pass : std::uint8_t {
  forward,
  recompute,
  backward,
  weight_gradient  // what of a backward makes the gradients of parameters, where a schedule runs it apart
};
inline constexpr int kPasses = 4;
constexpr bool is_of_backward(Pass pass) { return pass == Pass::backward || pass == Pass::weight_gradient; }
enum class StepKind : std::uint8_t {
  train,
  evaluate,
  finish  // runs between steps the updates that a training step left to the next one
};

std::string_view name_of(Pass pass);
std::string_view name_of(StepKind kind);

}  // namespace tessera
