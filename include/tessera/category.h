// The purposes by which memory plans and byte counters group memory.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Category : std::uint8_t {
  parameters,
  gathered_parameters,
  gradients,
  optimizer_state,
  activations,
  communication,
  workspace
};
inline constexpr int kCategories = 7;
std::string_view name_of(Category category);

}  // namespace tessera
