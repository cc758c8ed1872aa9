// How ranks add up what they reduce.
#pragma once

#include <compare>
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

// The ranks of a group whose parts a reduction adds up: `count` of them, from `first` on. By default all.
struct Contributors {
  int first = 0;
  int count = 0;  // 0: all, and first is 0

  bool all() const { return count == 0; }
  bool contains(int rank) const { return all() || (rank >= first && rank < first + count); }
  // The same with the count of a group of so many ranks where it was 0.
  Contributors among(int ranks) const { return all() ? Contributors{.count = ranks} : *this; }
  auto operator<=>(const Contributors&) const = default;  // NOLINT(modernize-use-nullptr): of its own code
};

}  // namespace tessera
