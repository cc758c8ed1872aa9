// Launch arithmetic of the CUDA kernels: grids, tails, vector widths. Plain functions of shapes and
// addresses, compiled for the host and tested there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/host_device.h"

namespace tessera::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kVectorBytes = 16;               // the widest load and store
inline constexpr int kBlock = 256;                    // threads of an elementwise block
inline constexpr std::int64_t kMostBlocks = 1 << 20;  // of a grid; kernels loop over the rest with a stride
inline constexpr int kMostRowThreads = 512;           // of a block that works on one row

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr unsigned blocks_of(std::int64_t items, std::int64_t items_per_block) {
  return static_cast<unsigned>(std::min(ceil_div(items, items_per_block), kMostBlocks));
}

// The number of elements in one access of kVectorBytes, for the widest type that a kernel uses.
TESSERA_HOST_DEVICE constexpr int width_of(std::int64_t widest_bytes) {
  return static_cast<int>(kVectorBytes / widest_bytes);
}

// A tensor that a kernel accesses. Its address decides whether `width` elements can be accessed at a time.
struct Operand {
  const void* data = nullptr;  // null: not accessed
  std::int64_t element_bytes = 4;
};

inline bool is_aligned(int width, std::initializer_list<Operand> operands) {
  return std::all_of(operands.begin(), operands.end(), [&](const Operand& operand) {
    const auto bytes =
        static_cast<std::uintptr_t>(std::min<std::int64_t>(width * operand.element_bytes, kVectorBytes));
    return reinterpret_cast<std::uintptr_t>(operand.data) % bytes == 0;
  });
}

// The launch of an elementwise kernel: `vectors` vectors of `width` elements, then single elements up to
// numel. If the tensors are not all aligned, there are only single elements.
struct Sweep {
  std::int64_t vectors = 0;
  std::int64_t numel = 0;
  unsigned blocks = 0;  // blocks of kBlock threads; 0: nothing to launch
};

inline Sweep sweep_of(std::int64_t numel, int width, std::initializer_list<Operand> operands) {
  const std::int64_t vectors = is_aligned(width, operands) ? numel / width : 0;
  return {.vectors = vectors,
          .numel = numel,
          .blocks = blocks_of(std::max(vectors, numel - vectors * width), kBlock)};
}

// The launch of a kernel over the rows of a matrix. A block works on one row at a time.
struct RowSweep {
  std::int64_t rows = 0;
  int columns = 0;
  bool vectorized = false;  // every row consists of whole, aligned vectors
  int threads = kWarp;
  unsigned blocks = 0;  // 0: nothing to launch
};

// `strides`: elements from one row to the next, for each tensor; rows are vectorized only if these keep the
// alignment.
inline RowSweep row_sweep_of(std::int64_t rows, std::int64_t columns, int width,
                             std::initializer_list<Operand> operands,
                             std::initializer_list<std::int64_t> strides) {
  const bool vectorized =
      columns % width == 0 && is_aligned(width, operands) &&
      std::all_of(strides.begin(), strides.end(), [&](std::int64_t stride) { return stride % width == 0; });
  const std::int64_t items = vectorized ? columns / width : columns;
  const auto threads = std::clamp<std::int64_t>(ceil_div(items, kWarp) * kWarp, kWarp, kMostRowThreads);
  return {.rows = rows,
          .columns = static_cast<int>(columns),
          .vectorized = vectorized,
          .threads = static_cast<int>(threads),
          .blocks = columns == 0 ? 0 : blocks_of(rows, 1)};
}

// Whether each thread has at most one vector of a row.
constexpr bool one_vector_each(const RowSweep& sweep, int width) {
  return sweep.vectorized && sweep.columns <= sweep.threads * width;
}

// The number of contiguous groups in which rows are summed; the groups are summed afterwards. It depends only
// on the shape, so that the order of a sum is the same on every GPU. There are enough groups to fill a GPU,
// and few enough that their sums stay small compared with the matrix.
constexpr std::int64_t row_groups_of(std::int64_t rows, std::int64_t columns) {
  const std::int64_t most =
      std::clamp<std::int64_t>((std::int64_t{1} << 20) / std::max<std::int64_t>(columns, 1), 256, 1024);
  return std::clamp<std::int64_t>(rows, 1, most);
}

// The number of groups for column_sum, which reads each row once and keeps little.
constexpr std::int64_t column_groups_of(std::int64_t rows) {
  return std::clamp<std::int64_t>(ceil_div(rows, 64), 1, 1024);
}

// The first row of a group. Its last row is the one before the first row of the next group.
TESSERA_HOST_DEVICE constexpr std::int64_t group_begin(std::int64_t rows, std::int64_t groups,
                                                       std::int64_t group) {
  return rows / groups * group + (group < rows % groups ? group : rows % groups);
}

// The sort of embedding backward works on a power of two.
constexpr std::int64_t next_power_of_two(std::int64_t value) {
  std::int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

}  // namespace tessera::kernels::cuda
