#include "tests/emulated_cuda/cublas_lt/multiply.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/float_types.h"
#include "kernels/fp8_math.h"

namespace tessera::emulated_cuda::cublas_lt {
namespace {

using kernels::Bf16;
using kernels::E4m3;
using kernels::to_float;

// A tile is what is summed at once: kRows lanes, and as many columns as registers hold.
constexpr std::int64_t kRows = 8, kColumns = 4;
using Lanes = double __attribute__((vector_size(kRows * sizeof(double))));

// op(M) as a table of `lines`, each a row of op(A) or a column of op(B) along k.
struct Lines {
  const void* data;
  cudaDataType_t type;
  std::int64_t count, k;
  std::int64_t line_stride, k_stride;
  Scales scales;
};

Lines rows_of_a(const Product& p) {
  const bool turned = p.problem.transpose_a == CUBLAS_OP_T;
  const std::int64_t leading = p.problem.a.leading;
  return {p.a,       p.problem.a.type, p.problem.m, p.problem.k, turned ? leading : 1, turned ? 1 : leading,
          p.a_scales};
}
Lines columns_of_b(const Product& p) {
  const bool turned = p.problem.transpose_b == CUBLAS_OP_T;
  const std::int64_t leading = p.problem.b.leading;
  return {p.b,       p.problem.b.type, p.problem.n, p.problem.k, turned ? 1 : leading, turned ? leading : 1,
          p.b_scales};
}

// Groups of kWidth lines, one group behind the other; within it the lines' elements at each k side by side.
// Behind the last line are zeros, from which nothing is stored.
template <std::int64_t kWidth, class Element>
void pack(const Lines& lines, std::vector<double>& packed) {
  const std::int64_t groups = (lines.count + kWidth - 1) / kWidth;
  packed.assign(static_cast<std::size_t>(groups * lines.k * kWidth), 0.0);
  double* to = packed.data();
  for (std::int64_t first = 0; first < lines.count; first += kWidth) {
    const Element* const from = static_cast<const Element*>(lines.data) + first * lines.line_stride;
    const std::int64_t width = std::min(kWidth, lines.count - first);
    for (std::int64_t k = 0; k < lines.k; ++k, to += kWidth)
      for (std::int64_t line = 0; line < width; ++line)
        to[line] =
            to_float(from[line * lines.line_stride + k * lines.k_stride]) * lines.scales.at(first + line, k);
  }
}
template <std::int64_t kWidth>
void pack(const Lines& lines, std::vector<double>& packed) {
  if (lines.type == CUDA_R_32F)
    pack<kWidth, float>(lines, packed);
  else if (lines.type == CUDA_R_16BF)
    pack<kWidth, Bf16>(lines, packed);
  else
    pack<kWidth, E4m3>(lines, packed);
}

struct Tile {
  Lanes columns[kColumns];
};

void sum(const double* a, const double* b, std::int64_t begin, std::int64_t end, Tile& tile) {
  Lanes sums[kColumns] = {};
  for (std::int64_t k = begin; k < end; ++k) {
    Lanes rows;
    std::memcpy(&rows, a + k * kRows, sizeof(rows));
    for (std::int64_t j = 0; j < kColumns; ++j) sums[j] += rows * b[k * kColumns + j];
  }
  std::memcpy(tile.columns, sums, sizeof(sums));
}

// The sum of several parts, each rounded to fp32, as are their sums; `first` is the part that comes first.
void sum_of_parts(const double* a, const double* b, std::int64_t k, int parts, int first, Tile& tile) {
  Tile part_sums[3];
  for (int part = 0; part < parts; ++part)
    sum(a, b, k * part / parts, k * (part + 1) / parts, part_sums[part]);
  for (std::int64_t j = 0; j < kColumns; ++j)
    for (std::int64_t i = 0; i < kRows; ++i) {
      float total = 0;
      for (int part = 0; part < parts; ++part)
        total += static_cast<float>(part_sums[(first + part) % parts].columns[j][i]);
      tile.columns[j][i] = total;
    }
}

double element(const void* data, cudaDataType_t type, std::int64_t i) {
  return type == CUDA_R_32F ? static_cast<const float*>(data)[i]
                            : to_float(static_cast<const Bf16*>(data)[i]);
}

void store(const Product& p, const Tile& tile, std::int64_t first_row, std::int64_t first_column) {
  const Problem& s = p.problem;
  const std::int64_t rows = std::min(kRows, s.m - first_row),
                     columns = std::min(kColumns, s.n - first_column);
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t row = first_row + i, column = first_column + j;
      double value = tile.columns[j][i] * p.alpha;
      if (p.bias != nullptr) value += element(p.bias, s.bias_type, row);
      if (p.beta != 0) value += p.beta * element(p.c, s.c.type, row + column * s.c.leading);
      const std::int64_t at = row + column * s.d.leading;
      if (s.d.type == CUDA_R_32F)
        static_cast<float*>(p.d)[at] = static_cast<float>(value);
      else
        static_cast<Bf16*>(p.d)[at] = kernels::from_float<Bf16>(static_cast<float>(value));
    }
}

}  // namespace

void multiply(const Product& p) {
  thread_local std::vector<double> a, b;
  static std::atomic<unsigned> products{0};
  const int first = p.split.by_chance ? static_cast<int>(products++ % 3) : 0;
  const std::int64_t k = p.problem.k;
  pack<kRows>(rows_of_a(p), a);
  pack<kColumns>(columns_of_b(p), b);
  for (std::int64_t row = 0; row < p.problem.m; row += kRows)
    for (std::int64_t column = 0; column < p.problem.n; column += kColumns) {
      Tile tile;
      if (p.split.parts > 1)
        sum_of_parts(a.data() + row * k, b.data() + column * k, k, p.split.parts, first, tile);
      else
        sum(a.data() + row * k, b.data() + column * k, 0, k, tile);
      store(p, tile, row, column);
    }
}

}  // namespace tessera::emulated_cuda::cublas_lt
