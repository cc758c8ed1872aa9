// How ranks add up what they reduce.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Reduction : std::uint8_t {
  // One fp32 chain in rank order (docs/numerics.md): the same bits on every backend, at every stage, and with
  // gradients in any type.
  exact,
  // As the GPUs' own library does it fastest (NCCL's sum, which may use what the network between them adds by
  // itself): in its order, and rounded to the gradients' type on the way. Ranks still hold the same values as
  // each other, but those of another stage, or of other GPUs, can differ by rounding.
  native
};
std::string_view name_of(Reduction reduction);

}  // namespace tessera
