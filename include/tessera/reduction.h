// How ranks add up what they reduce.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Reduction : std::uint8_t {
  // One fp32 chain in rank order (docs/numerics.md): the same bits on every backend, at every stage, and with
  // gradients in any type.
  exact,
  // NCCL's own sum, the fastest on GPUs: in NCCL's order, rounded to the gradients' type on the way, and
  // possibly added by the network itself. All ranks still hold the same values, but another stage or other
  // GPUs can give values that differ by rounding.
  native
};
std::string_view name_of(Reduction reduction);

}  // namespace tessera
