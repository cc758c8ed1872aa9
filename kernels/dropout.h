// Dropout (Srivastava et al. 2014): an element becomes 0, or is kept and multiplied so that its expectation
// stays. Which ones is a pure function of counters: no mask is stored, and any pass on any mesh and backend
// that asks for an element again gets the same answer. The same bits for any thread count and instruction
// set.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// A share of elements in the unit of Dropout::threshold, 2^-16: the nearest, but 0 for 0 alone and never all.
// Throws UsageError unless 0 <= share < 1.
std::uint32_t dropout_threshold(double share);

// What is dropped of a batch of sequences, each of which has matrices of rows. Element `column` of a row is
// dropped where its 16 random bits are below `threshold`. They are half column % 8, the lower of a word
// first, of Philox4x32-10 (tessera/philox.h) of `key` and {column / 8, row, matrix, sequence}.
struct Dropout {
  std::uint32_t threshold = 0;       // 0: nothing is dropped or drawn
  std::uint64_t key = 0;             // of a seed, a step and a unit, say
  std::uint32_t matrix = 0;          // number of the first
  std::uint32_t first_sequence = 0;  // number of the batch's first

  // What kept elements are multiplied by: one over the share that is kept.
  float scale() const { return 65536.0f / static_cast<float>(65536 - threshold); }
};

// Of a tensor [batch, sequence, channels], which has one matrix a sequence and a row a token.
struct DropoutShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t channels = 0;
  DType type = DType::fp32;
};

// output = 0 where dropped, else input * scale(), rounded once; a NaN that is dropped is 0, too. Of a
// gradient this is backward. output may be input.
void dropout(const ComputeContext& context, const DropoutShape& shape, const Dropout& dropout,
             const void* input, void* output);

}  // namespace tessera::kernels
