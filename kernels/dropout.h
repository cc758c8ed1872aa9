// Dropout (Srivastava et al. 2014): an element becomes 0, or is kept and multiplied so that the expectation
// stays the same. A pure function of counters decides which elements are dropped. So no mask is stored, and
// every pass, mesh and backend drops the same elements. The same bits for any thread count and instruction
// set.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "kernels/step_block.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// A share of elements as a Dropout::threshold, in units of 2^-16, rounded to the nearest. Only a share of 0
// gives 0, and no share drops everything. Throws UsageError unless 0 <= share < 1.
std::uint32_t dropout_threshold(double share);

// Which elements of a batch are dropped. A batch has sequences, a sequence has matrices, and a matrix has
// rows. Element `column` of a row is dropped if its 16 random bits are below `threshold`. The bits are the
// 16-bit half number column % 8, the lower half of each word first, of Philox4x32-10 (tessera/philox.h) with
// key `key` and counter {column / 8, row, matrix, sequence}.
struct Dropout {
  std::uint32_t threshold = 0;       // 0: nothing is dropped or drawn
  std::uint64_t key = 0;             // such as a hash of seed, step and unit
  std::uint32_t matrix = 0;          // number of the first matrix
  std::uint32_t first_sequence = 0;  // number of the batch's first sequence
  StepKey key_at = {};               // on CUDA, where it has one, takes the place of `key`

  // The factor on kept elements: 1 / (share that is kept).
  float scale() const { return 65536.0f / static_cast<float>(65536 - threshold); }
};

// A tensor [batch, sequence, channels]: each sequence is one matrix, and each token a row. Or a part of one,
// [rows, channels]: the rows [first_row, first_row + rows) of [batch * sequence], of which the same elements
// are dropped as where all rows are there.
struct DropoutShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t channels = 0;
  DType type = DType::fp32;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;  // 0: all; then first_row is 0

  constexpr std::int64_t rows_or_all() const { return rows > 0 ? rows : batch * sequence; }
};

// output = 0 where dropped, else input * scale(), rounded once. A dropped NaN also becomes 0. Applied to a
// gradient this is the backward pass. output may be input.
void dropout(const ComputeContext& context, const DropoutShape& shape, const Dropout& dropout,
             const void* input, void* output);

}  // namespace tessera::kernels
