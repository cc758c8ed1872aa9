// The random bits of dropout.h, as CUDA and the CPU's tests compute them. cpu/dropout-inl.h computes many at
// once.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/philox_math.h"

namespace tessera::kernels {

// A row. `sequence` and `matrix` are counted from the dropout's first.
struct DrawnRow {
  std::uint32_t sequence, matrix, row;
};

// The dropout with the key that it has in this step, for kernels that read it where they run.
TESSERA_HOST_DEVICE inline Dropout at_step(Dropout dropout) {
  dropout.key = dropout.key_at.get(dropout.key);
  return dropout;
}

// Bit i says whether element 8 * block + i of the row is kept.
TESSERA_HOST_DEVICE inline unsigned kept_bits(const Dropout& dropout, const DrawnRow& at,
                                              std::uint32_t block) {
  const PhiloxWords drawn = philox_words(
      dropout.key, {{block, at.row, dropout.matrix + at.matrix, dropout.first_sequence + at.sequence}});
  unsigned kept = 0;
  for (int i = 0; i < 4; ++i) {
    kept |= static_cast<unsigned>((drawn.word[i] & 0xffffu) >= dropout.threshold) << (2 * i);
    kept |= static_cast<unsigned>((drawn.word[i] >> 16) >= dropout.threshold) << (2 * i + 1);
  }
  return kept;
}

}  // namespace tessera::kernels
