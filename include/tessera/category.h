// The purposes by which memory plans and byte counters group memory.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Category : std::uint8_t {
  parameters,           // persistent ones, and their copies that are staged on the host
  gathered_parameters,  // gathered or uploaded for uses
  gradients,            // transient gradients and accumulators
  optimizer_state,      // master weights and moments
  activations,          // outputs, their gradients, what units save, the batch
  communication,        // the step's scalars and decisions; sums of tied gradients for another pipeline rank
  workspace,            // scratch of kernels, and sums of squares of gradients
  cache                 // what stays from evaluation to evaluation: keys and values of tokens that were read
};
inline constexpr int kCategories = 8;
std::string_view name_of(Category category);

}  // namespace tessera
