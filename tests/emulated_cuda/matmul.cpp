// Stands in for kernels/cuda/matmul.cpp, which is cuBLASLt's: sums in float64, rounded once.
#include "kernels/matmul.h"

#include "kernels/check.h"
#include "kernels/cuda/launch_options.cuh"
#include "kernels/cuda/matmul_place.h"
#include "kernels/float_types.h"
#include "kernels/ops.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/stream_work.h"

namespace tessera::kernels::cuda {
namespace {

struct Matrix {
  const void* data;
  DType type;
  std::int64_t row_stride, column_stride;

  double at(std::int64_t row, std::int64_t column) const {
    const std::int64_t i = row * row_stride + column * column_stride;
    return type == DType::fp32 ? static_cast<const float*>(data)[i]
                               : to_float(static_cast<const Bf16*>(data)[i]);
  }
};

Matrix matrix(const void* data, DType type, std::int64_t leading, bool transposed) {
  return {data, type, transposed ? 1 : leading, transposed ? leading : 1};
}

void multiply(int gpu, const MatmulShape& s, const void* a, const void* b, const void* bias, void* c) {
  const emulated_cuda::Access access(gpu);
  const auto leading = [](std::int64_t given, std::int64_t dense) { return given == 0 ? dense : given; };
  const Matrix left = matrix(a, s.input_type, leading(s.lda, s.transpose_a ? s.m : s.k), s.transpose_a);
  const Matrix right = matrix(b, s.input_type, leading(s.ldb, s.transpose_b ? s.k : s.n), s.transpose_b);
  const Matrix result = matrix(c, s.output_type, leading(s.ldc, s.n), false);
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < s.k; ++k) sum += left.at(i, k) * right.at(k, j);
      sum *= s.alpha;
      if (bias != nullptr) sum += matrix(bias, s.output_type, s.n, false).at(0, j);
      if (s.beta != 0) sum += s.beta * result.at(i, j);
      const std::int64_t at = i * result.row_stride + j;
      if (s.output_type == DType::fp32)
        static_cast<float*>(c)[at] = static_cast<float>(sum);
      else
        static_cast<Bf16*>(c)[at] = from_float<Bf16>(static_cast<float>(sum));
    }
}

// As cuBLASLt has no algorithm for a matrix that is said to begin within an element.
void check_place(const MatmulShape& s, const MatmulPlace& place) {
  const std::int64_t input_bytes = bytes_of(s.input_type), output_bytes = bytes_of(s.output_type);
  if (place.a < input_bytes || place.b < input_bytes || place.c < output_bytes)
    throw UnsupportedError(describe(s) + ": cuBLASLt has no algorithm for it on this GPU");
}

}  // namespace

std::int64_t matmul_workspace_bytes(const MatmulShape& shape, const Target&) {
  check_matmul(shape);
  return 1024;
}

void matmul(const ComputeContext& context, const MatmulShape& s, const void* a, const void* b,
            const void* bias, void* c) {
  check_workspace(context, cuda::matmul_workspace_bytes(s, context.target()), "matmul");
  check_bias(s, bias);
  check_place(s, place_of(s, a, b, bias, c));
  if (reinterpret_cast<std::uintptr_t>(context.workspace.data) % kWorkspaceAlignment != 0)
    throw UsageError("matmul: cuBLASLt's workspace begins at a multiple of 256 bytes");
  emulated_cuda::count_launch("matmul");
  const auto work = emulated_cuda::work_of(stream_of(context));
  work->give([=, gpu = work->ordinal()] { multiply(gpu, s, a, b, bias, c); });
}

}  // namespace tessera::kernels::cuda
