// Looks for values that are not finite in safetensors files.
#pragma once

#include <span>
#include <string>

#include "src/checkpoint/safetensors_files.h"

namespace tessera::checkpoint {

// Reads the rank's share of all tensors: the `rank`-th of `world` equal parts of their elements, one after
// the other, through a buffer of a few MiB. Throws UsageError naming tensor, file and index of the first
// element that is not finite; `option` is what allows such elements, for the message. Tensors must be of
// types that weight_type() knows.
void check_finite(std::span<const SafetensorsFiles::Tensor* const> tensors, int rank, int world,
                  const std::string& option);

}  // namespace tessera::checkpoint
